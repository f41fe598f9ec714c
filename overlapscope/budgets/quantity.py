"""Quantities with units: read from a configuration, and written so that two that differ look different."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Context, Decimal
from typing import Final

from overlapscope.budgets.verdicts import Unit
from overlapscope.errors import ConfigError

_TIMES: Final = {"ns": 0, "us": 3, "µs": 3, "ms": 6, "s": 9}
"""Powers of ten of nanoseconds."""
_RATES: Final = {"MB/s": -3, "GB/s": 0, "TB/s": 3}
_NUMBER = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*(\S*)\s*")
_LARGEST = Decimal(10) ** 18
"""Thirty years, in nanoseconds."""
_MOST_DECIMALS = 30
_WRITTEN = 3
"""Decimals that a person writes."""
_WIDE = Context(prec=400)
_EXAMPLE: Final[dict[Unit, str]] = {
    "ns": '"3 ms"',
    "pct": '"80%"',
    "gb_per_s": '"40 GB/s"',
    "findings": '"0"',
    "differences": '"0"',
}


def parse(text: str | float, unit: Unit) -> float:
    """A quantity such as `3 ms`, `80%` or `40 GB/s`, in the given unit. A bare number is a percentage, or nothing.

    Raises ConfigError with what to write instead.
    """
    match = _NUMBER.fullmatch(str(text))
    if match is None:
        raise ConfigError(f"{text!r} is not {_kind(unit)}; write it like {_EXAMPLE[unit]}")
    number, name = Decimal(match[1]), match[2]
    if unit == "pct" and not name and "." in match[1] and 0 < number <= 1:
        raise ConfigError(
            f'{text!r} may mean {exact(float(number), unit)} or {exact(float(100 * number), unit)}; write it like "80%"'
        )
    if unit == "pct" and name in ("", "%"):
        value = number
    elif unit == "ns" and name in _TIMES:
        value = number.scaleb(_TIMES[name])
    elif unit == "gb_per_s" and name in _RATES:
        value = number.scaleb(_RATES[name])
    else:
        what = f"has the unit {name!r}" if name else "has no unit"
        raise ConfigError(f"{text!r} {what}, and {_kind(unit)} is needed; write it like {_EXAMPLE[unit]}")
    if value < 0:
        raise ConfigError(f"{text!r} is below zero, but {_kind(unit)} cannot be negative")
    if value > _LARGEST:
        raise ConfigError(f"{text!r} is larger than {_kind(unit)} can be; write it like {_EXAMPLE[unit]}")
    return float(value)


def is_share(text: str | float) -> bool:
    """Whether it is written as a percentage, whatever is being measured."""
    return isinstance(text, str) and text.rstrip().endswith("%")


def _kind(unit: Unit) -> str:
    return {"ns": "a time", "pct": "a percentage", "gb_per_s": "a bandwidth"}.get(unit, "a number")


def show(value: float | None, unit: Unit) -> str:
    """One quantity as a person reads it; `unknown` for None."""
    return "unknown" if value is None else distinct([value], unit)[0]


def exact(value: float, unit: Unit) -> str:
    """A quantity with all its digits and none that are not needed, as `parse` reads it: `38.80671 ms`."""
    number, name = Decimal(repr(value)), "GB/s" if unit == "gb_per_s" else ""
    if unit == "ns":
        fitting = [(power, word) for word, power in _TIMES.items() if number >= Decimal(1).scaleb(power)]
        power, name = max(fitting, key=lambda unit: unit[0], default=(0, "ns"))
        number = number.scaleb(-power)
    text = f"{number:f}"
    short = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{short}%" if unit == "pct" else f"{short} {name}".rstrip()


def distinct(values: Iterable[float], unit: Unit) -> tuple[str, ...]:
    """Several quantities of one unit, with as many digits as it takes to tell apart those that differ.

    What is not nothing is not written as 0, and a percentage that is not all not as 100%.
    """
    listed = tuple(values)
    distinguished = {*listed, 0.0, 100.0} if unit == "pct" else {*listed, 0.0}
    suffix, power = _scale(listed, unit)
    # By way of the shortest text of a float: 79.96 is meant, not what is stored for it.
    exact = {value: Decimal(repr(value)).scaleb(-power) for value in distinguished}
    start = max(_decimals(max(abs(exact[value]) for value in listed)), *(_short(exact[value]) for value in listed))
    for decimals in range(start, _MOST_DECIMALS):
        step = Decimal(1).scaleb(-decimals)
        rounded = {value: number.quantize(step, context=_WIDE) for value, number in exact.items()}
        if len(set(rounded.values())) == len(distinguished):
            return tuple(f"{_text(rounded[value], exact[value])}{suffix}" for value in listed)
    bare = _scale((), unit)[0]
    return tuple(f"{value!r}{bare}" for value in listed)


def _text(rounded: Decimal, exact: Decimal) -> str:
    text = f"{rounded:,f}"
    # An exact figure, as a limit is, needs no zeros; a rounded one shows how exact it is.
    return text.rstrip("0").rstrip(".") if rounded == exact and "." in text else text


def _decimals(largest: Decimal) -> int:
    """Three digits, and no more than there are."""
    return 0 if largest >= 1000 else 1 if largest >= 10 else 2


def _short(number: Decimal) -> int:
    """How many decimals a figure has that somebody wrote, and so means; none for a measured one."""
    exponent = number.normalize().as_tuple().exponent
    return -exponent if isinstance(exponent, int) and -_WRITTEN <= exponent < 0 else 0


def _scale(values: Iterable[float], unit: Unit) -> tuple[str, int]:
    """What stands behind the number, and its power of ten."""
    if unit == "ns":
        largest = max(map(abs, values), default=0.0)
        for name, power in (("s", 9), ("ms", 6), ("us", 3)):
            if largest >= 10**power * (10 if name == "s" else 1):
                return f" {name}", power
        return " ns", 0
    return {"pct": "%", "gb_per_s": " GB/s"}.get(unit, ""), 0
