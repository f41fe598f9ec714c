"""Quantities with units: parsed from a configuration, and formatted so that different values look different."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Context, Decimal
from typing import Final

from overlapscope.budgets.verdicts import Unit
from overlapscope.errors import ConfigError

_POWERS: Final[dict[Unit, dict[str, int]]] = {
    "ns": {"ns": 0, "us": 3, "µs": 3, "ms": 6, "s": 9},
    "pct": {"": 0, "%": 0},
    "gb_per_s": {"MB/s": -3, "GB/s": 0, "TB/s": 3},
    "launches": {"": 0, "launches": 0},
}
"""Powers of ten of what may follow a number of each unit."""
_KINDS: Final[dict[Unit, tuple[str, str]]] = {
    "ns": ("a time", '"3 ms"'),
    "pct": ("a percentage", '"80%"'),
    "gb_per_s": ("a bandwidth", '"40 GB/s"'),
    "launches": ("a number", '"1500"'),
}
"""Kind of a quantity, and an example."""
_NUMBER = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*(\S*)\s*")
_MAX_VALUE = Decimal(10) ** 18
"""Thirty years in nanoseconds: no quantity may be larger."""
_MAX_DECIMALS = 30
_MAX_WRITTEN_DECIMALS = 3
"""Maximum number of decimals in a figure that a person wrote."""
_EXACT_CONTEXT = Context(prec=400)


def parse(text: str | float, unit: Unit, *, or_share: bool = False) -> float:
    """Return a quantity such as `3 ms`, `80%` or `40 GB/s` in the given unit. Only a percentage needs no unit.

    With `or_share`, messages say that a percentage may be written as well.

    Raises:
        ConfigError: The text is wrong. The message states what to write instead.
    """
    match = _NUMBER.fullmatch(str(text))
    kind, example = _KINDS[unit]
    like = f"write it like {example}" + (' or "10%"' if or_share else "")
    if match is None:
        raise ConfigError(f"{text!r} is not {kind}; {like}")
    number, name = Decimal(match[1]), match[2]
    if unit == "pct" and not name and "." in match[1] and 0 < number <= 1:
        raise ConfigError(
            f"{text!r} may mean {exact(float(number), unit)} or {exact(float(100 * number), unit)}; {like}"
        )
    if name not in _POWERS[unit]:
        problem = f"has the unit {name!r}" if name else "has no unit"
        raise ConfigError(f"{text!r} {problem}, and {kind} is needed; {like}")
    value = number.scaleb(_POWERS[unit][name])
    if value < 0:
        raise ConfigError(f"{text!r} is below zero, but {kind} cannot be negative")
    if value > _MAX_VALUE:
        raise ConfigError(f"{text!r} is larger than {kind} can be; {like}")
    return float(value)


def is_share(text: str | float) -> bool:
    """Return whether a quantity is written as a percentage."""
    return isinstance(text, str) and text.rstrip().endswith("%")


def show(value: float | None, unit: Unit) -> str:
    """Format a quantity for people; `unknown` for None."""
    return "unknown" if value is None else distinct([value], unit)[0]


def difference(value: float, unit: Unit) -> str:
    """Format the difference of two quantities. Percentages differ by points: `5 points`."""
    return distinct([value], unit, pct=" points")[0]


def exact(value: float, unit: Unit) -> str:
    """Format a quantity with all significant digits, so that `parse` returns the same value: `38.80671 ms`."""
    number, name = Decimal(repr(value)), "GB/s" if unit == "gb_per_s" else ""
    if unit == "ns":
        fitting = [(power, word) for word, power in _POWERS["ns"].items() if number >= Decimal(1).scaleb(power)]
        power, name = max(fitting, key=lambda unit: unit[0], default=(0, "ns"))
        number = number.scaleb(-power)
    text = f"{number:f}"
    short = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{short}%" if unit == "pct" else f"{short} {name}".rstrip()


def distinct(values: Iterable[float], unit: Unit, *, pct: str = "%") -> tuple[str, ...]:
    """Format several quantities of the same unit with enough digits to set different values apart.

    Only zero is written as 0, and only exactly 100 percent as 100%. `pct` follows each percentage.

    Returns:
        One text per value.
    """
    listed = tuple(values)
    distinguished = {*listed, 0.0, 100.0} if unit == "pct" else {*listed, 0.0}
    suffix, power = (pct, 0) if unit == "pct" else _scale(listed, unit)
    # The shortest text of a float, 79.96, instead of the binary fraction that is stored for it.
    exact = {value: Decimal(repr(value)).scaleb(-power) for value in distinguished}
    largest = max(abs(exact[value]) for value in listed)
    # About three digits.
    start = max(0 if largest >= 1000 else 1 if largest >= 10 else 2, *(_short(exact[value]) for value in listed))
    for decimals in range(start, _MAX_DECIMALS):
        step = Decimal(1).scaleb(-decimals)
        rounded = {value: number.quantize(step, context=_EXACT_CONTEXT) for value, number in exact.items()}
        if len(set(rounded.values())) == len(distinguished):
            return tuple(f"{_text(rounded[value], exact[value])}{suffix}" for value in listed)
    bare = pct if unit == "pct" else _scale((), unit)[0]
    return tuple(f"{value!r}{bare}" for value in listed)


def _text(rounded: Decimal, exact: Decimal) -> str:
    text = f"{rounded:,f}"
    # Trailing zeros show the precision of a rounded figure. An exact figure, such as a limit, needs none.
    return text.rstrip("0").rstrip(".") if rounded == exact and "." in text else text


def _short(number: Decimal) -> int:
    """Return the number of decimals in a figure that a person wrote; 0 for a measured figure."""
    exponent = number.normalize().as_tuple().exponent
    return -exponent if isinstance(exponent, int) and -_MAX_WRITTEN_DECIMALS <= exponent < 0 else 0


def _scale(values: Iterable[float], unit: Unit) -> tuple[str, int]:
    """Return the suffix for a group of values, and its power of ten."""
    if unit == "ns":
        largest = max(map(abs, values), default=0.0)
        for name, power in (("s", 9), ("ms", 6), ("us", 3)):
            if largest >= 10**power * (10 if name == "s" else 1):
                return f" {name}", power
        return " ns", 0
    return " GB/s" if unit == "gb_per_s" else "", 0
