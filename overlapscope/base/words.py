"""Numbers, lists and foreign text for people to read, and sizes and times as people write them.

A number is never rounded to a misleading value: only zero is shown as 0, and only everything as 100%. None is "n/a",
and so is a percentage of nothing. Sizes are in decimal units, like bandwidths.

Texts are in TOML files of the package, which are read when one is needed, and have words for the devices of a trace.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from overlapscope.errors import NotInTrace

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = "n/a"
MAX_BYTES = 2**63 - 1
_FORMULA = r"[=+@\t\r-]"
_SPAN = r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d)\s*"
_SPANS_S: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_SIZE = r"(?i)\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*"


class Unit(NamedTuple):
    """A unit of time for a whole section, so that its figures can be compared at a glance."""

    name: str
    ns: int
    decimals: int

    def number(self, ns: int | None) -> str:
        """Return the number alone, for a column whose title names the unit."""
        if ns is None:
            return NOTHING
        if self.hides(ns):
            return f"< {self.least}" if ns > 0 else f"> -{self.least}"
        return f"{ns / self.ns:,.{self.decimals}f}" if ns else "0"

    def text(self, ns: int | None) -> str:
        """Return the number with its unit."""
        return NOTHING if ns is None else f"{self.number(ns)} {self.name}"

    def hides(self, ns: int) -> bool:
        """Return whether the decimals of a length other than zero are all zero."""
        return 0 < abs(ns) < self.ns and round(ns / self.ns, self.decimals) == 0

    @property
    def least(self) -> str:
        """The shortest length whose decimals are not all zero."""
        return f"{10**-self.decimals:.{self.decimals}f}"


def unit_for(span_ns: int) -> Unit:
    """Return the unit in which a window of this length has four or five digits."""
    if span_ns >= 10_000_000_000:
        return Unit("s", 1_000_000_000, 2 if span_ns < 1_000_000_000_000 else 1)
    if span_ns >= 1_000_000:
        return Unit("ms", 1_000_000, 1 if span_ns >= 100_000_000 else 2 if span_ns >= 10_000_000 else 3)
    return Unit("us", 1_000, 1)


def duration(ns: float) -> str:
    """Return a length for a sentence, with three digits: `412 us`, `9.69 ms`, `1.20 s`."""
    unit = _three_digits(ns)
    return f"{ns / unit.ns:.{unit.decimals}f} {unit.name}"


def _three_digits(ns: float) -> Unit:
    """Return the unit and the decimals that give a length three digits."""
    scale, name = next((scale, name) for scale, name in _UNITS if abs(ns) < 999.5 * scale or name == "s")
    value = abs(ns) / scale
    return Unit(name, scale, 0 if name == "ns" or value >= 99.95 else 1 if value >= 9.995 else 2)


_UNITS = ((1, "ns"), (1_000, "us"), (1_000_000, "ms"), (1_000_000_000, "s"))


def part_of(part: int, whole: int) -> str:
    """Return `24.3 of 89.8 ms`, or `11.0 us of 1.23 s` for a part too short for the whole's unit.

    It is `all 89.8 ms`, or `nearly all` where the two look the same.
    """
    unit = _three_digits(whole)
    if part >= whole:
        return f"all {duration(whole)}"
    number = unit.number(part)
    if number == unit.number(whole):
        return f"nearly all {duration(whole)}"
    return f"{duration(part) if number.startswith('<') else number} of {duration(whole)}"


def ends(low: str, high: str, word: str = "to") -> str:
    """Return `15.8 to 17.1`; the text alone if both ends look the same."""
    return low if low == high else f"{low} {word} {high}"


def between(low_ns: int, high_ns: int, word: str = "to") -> str:
    """Return `15.8 to 17.1 ms`, with the unit and the decimals of the upper end."""
    unit = _three_digits(high_ns)
    return f"{ends(unit.number(low_ns), unit.number(high_ns), word)} {unit.name}"


def saved_between(low_ns: int, value_ns: int, high_ns: int) -> str:
    """Return the interval of a saving beside its value: `5.90 to 7.01 ms`, or `at most 409 us, or costs up to 740 us`.

    Ends that look like the value are left out.
    """
    low, value, high = (duration(max(0, ns)) for ns in (low_ns, value_ns, high_ns))
    if low_ns > 0:
        return "" if low == high else between(low_ns, high_ns)
    parts = [] if high == value else [f"at most {high}"]
    return ", ".join([*parts, f"or costs up to {duration(-low_ns)}" if low_ns < 0 else "or nothing"])


def percent(value: float | None) -> str:
    """Return a percentage with a decimal and the sign; 0 and 100 only where they are exact."""
    if value is None:
        return NOTHING
    return f"{bare_percent(value)}%"


def bare_percent(value: float | None) -> str:
    """Return `percent` without the sign, for a column whose title has it."""
    if value is None:
        return NOTHING
    if value in (0, 100):
        return f"{value:.0f}"
    if 0 < value < 0.05:
        return "< 0.1"
    if 99.95 <= value < 100:
        return "> 99.9"
    return f"{value:.1f}"


def share(part: int | None, whole: int) -> str:
    """Return `part` as a percentage of `whole`."""
    return percent(100 * part / whole if part is not None and whole else None)


def bare_share(part: float | None, whole: float | None) -> str:
    """Return `share` without the sign, for a column whose title has it."""
    return bare_percent(100 * part / whole if part is not None and whole else None)


def bare_shares(parts: Sequence[int], whole: int) -> list[str]:
    """Return the parts of a whole as percentages that add up to 100.0, each rounded as in `share`.

    The first part that is large enough makes up the difference, so the first should be the one that no text mentions.
    """
    if not whole:
        return [NOTHING] * len(parts)
    tenths = [round(10 * float(f"{100 * part / whole:.1f}")) for part in parts]
    missing = 1000 * sum(parts) // whole - sum(tenths)
    if missing:
        tenths[next((i for i, tenth in enumerate(tenths) if tenth > max(0, -missing)), 0)] += missing
    texts = []
    for part, tenth in zip(parts, tenths, strict=True):
        if part in (0, whole):
            texts.append("100" if part else "0")
        else:
            texts.append("< 0.1" if tenth == 0 else "> 99.9" if tenth == 1000 else f"{tenth / 10:.1f}")
    return texts


def shares_of(parts: Mapping[str, int], whole: int) -> dict[str, str]:
    """Return `bare_shares` by name."""
    return dict(zip(parts, bare_shares([*parts.values()], whole), strict=True))


def shares_by_name(parts: Mapping[str, int], whole: int) -> dict[str, str]:
    """Return `bare_shares` by name. The smallest part that is large enough makes up the difference."""
    return shares_of({name: parts[name] for name in sorted(parts, key=lambda name: (parts[name], name))}, whole)


def size(count: int | None) -> str:
    """Return bytes with up to three digits: `4 B`, `41.9 MB`."""
    if count is None:
        return "unknown"
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB" if value < 1000 else f"{value:,.0f} TB"


def parse_span(text: str) -> int:
    """Return the nanoseconds in a text such as `30s`, `10 min`, `1.5h` or `90d`.

    Raises:
        ValueError: The text is not a length of time.
    """
    from decimal import Decimal

    match = re.fullmatch(_SPAN, text)
    if match is None or len(text) > 20:
        raise ValueError(f"{shorten(text, 40)!r} is not a length of time; write it like 30s, 10min, 2h or 90d")
    return int(Decimal(match[1]) * _SPANS_S[match[2]] * 10**9)


def parse_size(text: str) -> int:
    """Return the bytes in a text such as `20GB`, `1.5 GiB`, `4096` or `0`.

    Raises:
        ValueError: The text is not a size.
    """
    from decimal import Decimal

    match = re.fullmatch(_SIZE, text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write it like 20GB or 512MiB")
    base = 1024 if match[3] else 1000
    count = Decimal(match[1]) * base ** " kmgt".index(match[2].lower() or " ")
    if count > MAX_BYTES:
        raise ValueError(f"{shorten(text, 40)!r} is more than any file holds")
    return int(count)


def bandwidth(gb_per_s: float | None) -> str:
    """Return a number with up to three digits."""
    if gb_per_s is None:
        return "unknown"
    return f"{gb_per_s:.1f}" if gb_per_s >= 0.1 else f"{gb_per_s:.2g}"


def clean(text: str, limit: int | None = None) -> str:
    """Return foreign text without characters that a terminal acts upon, shortened if it is long.

    Names of kernels, files and ranges come from the trace, which anyone may have written.
    """
    safe = text if text.isprintable() else "".join(c if c.isprintable() else _spelled(c) for c in text)
    return safe if limit is None else shorten(safe, limit)


def in_spreadsheet(text: str) -> str:
    """Return foreign text for a CSV file, with a quote before text that a spreadsheet would take for a formula.

    See OWASP, "CSV Injection".
    """
    return f"'{clean(text)}" if re.match(_FORMULA, text) else clean(text)


def clean_lines(text: str, limit: int = 2000) -> str:
    """Return foreign text with its line breaks, and each line cleaned and shortened separately."""
    return "\n".join(clean(line, limit) for line in text.split("\n"))


def _spelled(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def shorten(text: str, width: int) -> str:
    """Return a text without its middle if it is longer than `width`, because both ends of a name matter most."""
    if len(text) <= width:
        return text
    head = max(0, width - 1) * 2 // 3
    tail = max(0, width - 1 - head)
    return f"{text[:head]}…{text[len(text) - tail :]}"


def capital(text: str) -> str:
    """Return a text as the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def plural(count: int, noun: str) -> str:
    """Return `1 step`, `2,000 steps`, `3 batches`, `4 copies`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {_several(noun)}"


def _several(noun: str) -> str:
    return f"{noun[:-1]}ies" if noun.endswith("py") else f"{noun}es" if noun.endswith(("ch", "ss")) else f"{noun}s"


def each(count: int, among: int, noun: str = "") -> str:
    """Return how many of `count` things each of several has: `2 steps`, `2.5 steps`, `12 steps`; `2.5` without noun."""
    if count % among == 0:
        return plural(count // among, noun) if noun else f"{count // among:,}"
    share = count / among
    text = f"{share:,.{0 if share >= 10 else 1}f}" if share >= 0.05 else "< 0.1"
    return f"{text} {_several(noun)}" if noun else text


def listed(things: Iterable[object], most: int | None = None) -> str:
    """Return `a`, `a and b`, `a, b and c`; for more than `most` items, `a, b and 1,200 more`."""
    texts = [str(thing) for thing in things]
    if most is not None and len(texts) > most:
        texts[most:] = [f"{len(texts) - most:,} more"]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for use in a sentence, or an empty text."""
    import difflib

    close = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


# -- Names that a user asks for ---


def check_known(source: str, what: str, name: str, existing: Collection[str], *, none: str = "none") -> None:
    """Check that a name exists; `what` is the kind of thing, and `none` describes a trace without any.

    Raises:
        NotInTrace: The name does not exist; the message lists the names that do.
    """
    if name in existing:
        return
    names = [clean(each, 80) for each in existing]
    hint = did_you_mean(name, existing)
    raise NotInTrace(f"{source}: there is no {what} {name!r}{hint}; {what}s: {listed(names, 20) or none}.")


def check_device(source: str, device: int | None, devices: Collection[int]) -> None:
    """Check that a device did something; None stands for all devices.

    Raises:
        NotInTrace: It did nothing; the message lists the devices that did something.
    """
    if device is not None and device not in devices:
        did = listed(devices) or "none"
        raise NotInTrace(f"{source}: there is no device {device}; devices that did anything: {did}.")


def number_runs(numbers: Iterable[int]) -> list[str]:
    """Return numbers as text, three or more consecutive ones as one run: `3`, `8 to 15`, `17`."""
    ordered = sorted({*numbers})
    breaks = [place for place, (number, following) in enumerate(pairwise(ordered), 1) if following != number + 1]
    texts: list[str] = []
    for start, end in pairwise([0, *breaks, len(ordered)]):
        texts += [f"{ordered[start]} to {ordered[end - 1]}"] if end - start > 2 else map(str, ordered[start:end])
    return texts


# -- Texts in files, and words for devices -----------------------------------------------------------

T = TypeVar("T")
GPU: Final = "GPU"
_DEVICE_NOUNS: Final = {"Ascend": "NPU", "MTIA": "MTIA"}
"""Nouns for other devices, by the first word of their names. In lower case, they are PyTorch's modules for them."""


def noun_for(devices: Iterable[str | None]) -> str:
    """Return the noun for devices, given by name. Devices of several kinds are called GPUs."""
    kinds = {_DEVICE_NOUNS.get(re.split(r"\W", name or "", maxsplit=1)[0], GPU) for name in devices}
    return kinds.pop() if len(kinds) == 1 else GPU


def fill(text: str, gpu: str) -> str:
    """Return a text with the words for a device in place of `{gpu}`, `{cuda}`, `{CUDA}` and `{graph}`."""
    module = "cuda" if gpu == GPU else gpu.lower()
    words = {"gpu": gpu, "cuda": module, "CUDA": module.upper(), "graph": f"{module.upper()} graph"}
    for field, word in words.items():
        text = text.replace(f"{{{field}}}", word)
    return text


def read_texts(path: Path, type: type[T], gpu: str = GPU, *, table: str = "") -> T:
    """Return the texts of a file, with the words for a device.

    Lines of a paragraph are joined, and empty lines separate paragraphs.

    Args:
        path: The file.
        type: Their structure.
        gpu: Noun for the device.
        table: Name of the only table to read, since reading all of a long file takes milliseconds.
    """
    import tomllib

    import msgspec

    text = path.read_text(encoding="utf-8")
    if table:
        text = text.partition(f"\n[{table}]\n")[2].partition("\n[")[0]
    return msgspec.convert(_joined(tomllib.loads(fill(text, gpu))), type, str_keys=True)


def _joined(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _joined(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_joined(each) for each in value]
    if isinstance(value, str):
        return "\n".join(" ".join(paragraph.split()) for paragraph in value.strip().split("\n\n"))
    return value
