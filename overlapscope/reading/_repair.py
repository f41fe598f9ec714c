"""Events out of JSON that is not quite JSON.

`Recovery` goes through the damaged text once, item by item, and finds out where each item ends: an event, a stray
bracket, or noise. These invariants hold:

- The place in the text only grows, and each character before it belongs to exactly one item or separator.
- An item is either taken as an event, or counted as lost.
- An item that more text could change is left for later, unless the text is the last.
- Reading on in vain for the end of an event is paid from `_credit`, and all places where events begin and end are
  looked up beforehand. So the time is proportional to the length of the text, however it is damaged.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import islice
from typing import Any, NamedTuple, NoReturn

from overlapscope.reading._events import END_SIGHT, Losses, NamedRow
from overlapscope.reading._times import decimal

BOUNDARY = re.compile(r"\}(?=[\s,]*\{)|\}(?=\s*\](?:\s*\}|\s*,\s*\"|\s*$))")
"""Possible end of an event: before the next event, or before the array's end."""


_MAX_PIECES = 8
"""Maximum end positions to try before dropping a broken event."""
_MAX_JOINED = 4
"""Maximum pieces to join for an event whose name looks like the boundary between two."""
_MAX_EVENT_CHARS = 1 << 16
_MAX_DIGITS = 1000

Converter = Callable[[Any], tuple[Any, bool] | None]
"""Return the event in a JSON value and whether it needed repair; None where the value is not an event."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_SEPARATOR = re.compile(r"[\s,]*")
_FOOTER = re.compile(r"\]\s*(?:\Z|\}\s*\Z|,\s*(?:\Z|\"[^\"]*(?:\Z|\"\s*(?::|\Z))))")
_PHASE = re.compile(r"\"ph\"\s*:")
_EVENT_START = re.compile(r"\{[^{}]{0,300}\"ph\"\s*:")
_SCALAR = re.compile(r"(?:\"(?:[^\"\\]|\\.)*\"|[-+.\w]+)(?=[\s,\]]|\Z)", re.DOTALL)


class _Item(NamedTuple):
    """An item of the events array."""

    end: int
    """Index of the first character after the item."""
    value: Any = None
    """JSON value; None where the item is lost."""
    damaged: bool = True
    """True if the text of the item is not valid JSON."""


def _reject(word: str) -> NoReturn:
    raise ValueError(word)


def _whole(text: str) -> int | Decimal:
    # Python refuses to read whole numbers of thousands of digits.
    return int(text) if len(text) < _MAX_DIGITS else decimal(text)


_strict = json.JSONDecoder(parse_float=decimal, parse_int=_whole, parse_constant=_reject)
_lenient = json.JSONDecoder(parse_float=decimal, parse_int=_whole, parse_constant=lambda _: None, strict=False)
_DECODERS = ((_strict, False), (_lenient, True))
"""Decoders in the order in which they are tried, and whether the text is damaged if only this one can read it."""


class _Unnumbered(str):
    """A text in which an error has no line number, because counting lines takes as long as all the text before it."""

    def count(self, *_: object) -> int:
        return 0

    rfind = count


class Recovery:
    """One pass through damaged text, which begins at an event or at the comma before it."""

    def __init__(self, convert: Converter, text: str, losses: Losses, *, final: bool) -> None:
        """Recover the events.

        Args:
            convert: Makes an event of a JSON value.
            text: A stretch of the events array. Bytes that are not UTF-8 are escaped by `surrogateescape`.
            losses: Counts the lost and the repaired events.
            final: Whether no text follows. If so, an event that the end of `text` cuts is lost; otherwise it is left in
                `rest`.
        """
        self._convert = convert
        self._text = _Unnumbered(text)
        self._losses = losses
        self._final = final
        self._ends = [match.end() for match in BOUNDARY.finditer(text)]
        self._phases = [match.start() for match in _PHASE.finditer(text)]
        self._starts = [match.start() for match in _EVENT_START.finditer(text)]
        self._last_brace = text.rfind("{")
        self._escaped = not text.isascii() and _SURROGATE.search(text) is not None
        """True if some bytes were not UTF-8."""
        self._credit = 4 * len(text) + _MAX_EVENT_CHARS
        """Characters that may still be read in vain for objects with boundaries inside."""
        self.events: list[Any] = []
        """Events in order."""
        at, self.has_ended = self._read()
        self.rest = text[at:]
        """Text after the last event that could be decided on, or after the bracket that ends the array."""

    def _read(self) -> tuple[int, bool]:
        """Read as far as can be decided; return where that is, and whether the array ended there."""
        text, at = self._text, 0
        while True:
            start = _after_separator(text, at)
            if start == len(text):
                return start, False
            if text[start] in "[]":
                if text[start] == "]" and len(text) - start < END_SIGHT and not self._final:
                    return start, False
                if text[start] == "]" and self._is_array_end(start):
                    return start + 1, True
                # No event is a list. Read as a list, it would take all events after it along.
                at = start + 1
                self._losses.skip_bracket(text[start : start + 80])
                continue
            item = self._object(start) if text[start] == "{" else self._noise(start)
            if item is None:
                return start, False
            at = item.end
            self._take(text[start:at], item)

    def _take(self, text: str, item: _Item) -> None:
        """Add an item to the events, or count it as lost."""
        typed = None if item.value is None else self._convert(item.value)
        if typed is None:
            self._losses.lose(text)
            return
        event, repaired = typed
        self.events.append(event)
        if repaired or item.damaged or (self._escaped and _reads_escapes(event, item.value, text)):
            self._losses.repair(text)

    # -- Objects ---

    def _object(self, start: int) -> _Item | None:
        """Return the item that the brace at `start` begins; None where more text could change it."""
        ends = self._ends_after(start)
        return (
            self._up_to_first_boundary(start, ends)
            or self._over_boundaries(start)
            or self._mended_over_boundaries(start, ends)
            or self._lost(start, ends)
        )

    def _up_to_first_boundary(self, start: int, ends: list[int]) -> _Item | None:
        """Return the object that ends at the first boundary, mended if necessary, or else any object before it.

        None where the boundary lies inside the object, or is too far away for an event.
        """
        if not ends or ends[0] - start > _MAX_EVENT_CHARS:
            return None
        # Decode only the stretch up to the boundary: composing the error for a broken event takes as long as its text.
        piece = self._text[start : ends[0]]
        shorter = None
        for decoder, damaged in _DECODERS:
            value, end = _first(decoder, piece)
            if end == len(piece):
                return _Item(ends[0], value, damaged)
            if end:
                shorter = _Item(start + end, value, damaged)
                break
        # An object at the piece's beginning is taken only where no reading makes one object of the piece.
        self._credit -= len(piece) if shorter else 0
        for reading in mended(piece) if not shorter or self._credit > 0 else ():
            value = _all_of(reading)
            if value is not None:
                return _Item(ends[0], value)
        return shorter

    def _over_boundaries(self, start: int) -> _Item | None:
        """Return the valid object at `start`, whatever boundaries seem to lie inside it."""
        for decoder, damaged in _DECODERS:
            if self._credit <= 0:
                break
            try:
                value, end = decoder.raw_decode(self._text, start)
            except json.JSONDecodeError as error:
                self._credit -= error.pos - start
            except (ValueError, RecursionError):
                self._credit -= _MAX_EVENT_CHARS
            else:
                return _Item(end, value, damaged)
        return None

    def _mended_over_boundaries(self, start: int, ends: list[int]) -> _Item | None:
        """Return the broken object at `start` that ends at a later boundary than the first, mended."""
        for end in ends[1:_MAX_JOINED]:
            for reading in islice(mended(self._text[start:end]), 2):
                value = _all_of(reading)
                if value is not None:
                    return _Item(end, value)
        return None

    def _lost(self, start: int, ends: list[int]) -> _Item | None:
        """Return the item lost up to where the next event seems to begin.

        None where there are too few boundaries to be sure that the object is broken and not only cut.
        """
        enough = len(ends) == _MAX_PIECES or (ends and ends[-1] - start > _MAX_EVENT_CHARS)
        if not self._final and not enough:
            return None
        followed = (end for end in ends if self._event_follows(end))
        return _Item(next(followed, ends[-1] if ends else len(self._text)))

    # -- Noise ---

    def _noise(self, start: int) -> _Item | None:
        """Return the item lost at `start`, where no object begins; None where more text could change it."""
        text = self._text
        scalar = _SCALAR.match(text, start)
        if scalar is not None and (scalar.end() < len(text) or self._final):
            return _Item(scalar.end())
        following = bisect_left(self._starts, start)
        if following < len(self._starts):
            return _Item(self._starts[following])
        if self._final:
            return _Item(len(text))
        if len(text) - start < _MAX_EVENT_CHARS:
            return None
        # Keep anything that may be the beginning of an event, or the end of all.
        kept = [at for at in (self._last_brace, text.find("]", start + 1)) if at > start]
        return _Item(min(kept, default=len(text)))

    # -- Places ---

    def _ends_after(self, start: int) -> list[int]:
        """Return the boundaries that matter to an event at `start`: the last may be too far away for it."""
        first = bisect_right(self._ends, start)
        ends = self._ends[first : first + _MAX_PIECES]
        return ends[: bisect_right(ends, start + _MAX_EVENT_CHARS) + 1]

    def _event_follows(self, at: int) -> bool:
        start = _after_separator(self._text, at)
        if start == len(self._text) or self._text[start] == "]":
            return start == len(self._text) or self._is_array_end(start)
        return _EVENT_START.match(self._text, start) is not None

    def _is_array_end(self, at: int) -> bool:
        """Return whether the bracket at `at` ends the events, and not a list within an event that was lost."""
        phase = bisect_left(self._phases, at)
        near = phase < len(self._phases) and self._phases[phase] < at + END_SIGHT
        return not near and _FOOTER.match(self._text, at) is not None


def _reads_escapes(event: object, value: dict[str, Any], text: str) -> bool:
    """Return whether bytes that are not UTF-8 stand in a field that is read; other decoders check no other fields."""
    if _SURROGATE.search(text) is None or not isinstance(event, NamedRow):
        return False
    texts = (value.get(key) for key in ("cat", "name", "pid", "tid"))
    return any(isinstance(text, str) and _SURROGATE.search(text) is not None for text in texts)


def _after_separator(text: str, at: int) -> int:
    separator = _SEPARATOR.match(text, at)
    return at if separator is None else separator.end()


def _first(decoder: json.JSONDecoder, piece: str) -> tuple[Any, int]:
    """Return the value at the beginning of `piece`, and its end; 0 where there is none."""
    try:
        return decoder.raw_decode(piece)
    except (ValueError, RecursionError):
        return None, 0


def _all_of(piece: str) -> dict[str, Any] | None:
    """Return the event that makes up all of `piece`; None where there is none."""
    value, end = _first(_lenient, piece)
    return value if end == len(piece) and isinstance(value, dict) and "ph" in value else None


# -- Mended readings of a broken event ---------------------------------------------------------------

# Damage seen in real traces: unescaped backslashes and quotes in names, control characters, bare NaN, Infinity and N/A,
# and a negative time written as `0.-05` (kineto's `fmtTs`).

_MAX_QUOTED_CHARS = 1 << 13
"""Quotes out of place are not searched for in longer events."""

_BARE_WORD = re.compile(
    r"(?<=[:,\[\s])(?:[-+]?(?:nan(?:\([^()]*\))?|inf(?:inity)?)|N/A|undefined|None|True|False)(?=\s*[,}\]])",
    re.IGNORECASE,
)
_NEGATIVE_FRACTION = re.compile(r"(?<=[:\s])-?(\d+)\.-(\d+)")
_BAD_ESCAPE = re.compile(r"\\(?:([\"\\/bfnrt]|u[0-9a-fA-F]{4})|)")

_STRUCTURE = re.compile(r"[\"{}\[\]]")
_KEY_END = re.compile(r"\"\s*:")
_VALUE_END = re.compile(r"\"\s*(?:,\s*\"[^\"\n]{0,200}\"\s*:|(?:[}\]]\s*)+(?:,\s*[\"{\[]|$))")
# Only these fields can follow a field of the event itself; a name may contain anything else that looks like JSON.
_FIELD_END = re.compile(
    r"\"\s*(?:,\s*\"(?:ph|cat|name|pid|tid|ts|dur|args|id|bp|s)\"\s*:|(?:[}\]]\s*)+(?:,\s*[\"{\[]|$))"
)
_ITEM_END = re.compile(r"\"\s*(?:,\s*[\"{\[\d\-tfn]|\]\s*(?:[,}\]]|$))")
_QUOTE_OR_ESCAPE = re.compile(r"\\.|\"", re.DOTALL)


def mended(piece: str) -> Iterator[str]:
    """Yield readings of a broken event, the least daring first; none without a phase, which no event lacks."""
    if '"ph"' not in piece:
        return
    piece = _BARE_WORD.sub("null", piece)
    piece = _NEGATIVE_FRACTION.sub(lambda m: f"-{m[1]}.{m[2]:0>3}", piece)
    escaped = _BAD_ESCAPE.sub(lambda m: m[0] if m[1] else "\\\\", piece)
    yield escaped
    if len(piece) > _MAX_QUOTED_CHARS:
        return
    # A backslash before a closing quote (`C:\\dir\\`) makes sense only if no backslash is an escape.
    literal = piece.replace("\\", "\\\\")
    for reading in dict.fromkeys((escaped, literal)):
        for ends in (_FIELD_END, _VALUE_END):
            quoted = _escape_quotes(reading, ends)
            if quoted is not None:
                yield quoted


def _escape_quotes(piece: str, field_end: re.Pattern[str]) -> str | None:
    """Return `piece` with the quotes inside strings escaped; None where no reading makes sense.

    A quote ends a value only where the text after it can follow a value, so that `{"device": "cpu"}.py` within a
    name (pytorch #146900) stays one string.
    """
    out: list[str] = []
    open_brackets: list[str] = []
    last = ""
    at = 0
    while (mark := _STRUCTURE.search(piece, at)) is not None:
        between = piece[at : mark.start()].rstrip()
        last = between[-1] if between else last
        out.append(piece[at : mark.end()])
        at = mark.end()
        if mark[0] == '"':
            end = _string_end(piece, at, _string_ends(open_brackets, last, field_end))
            if end is None:
                return None
            out.append(_QUOTE_OR_ESCAPE.sub(lambda m: m[0] if len(m[0]) == 2 else '\\"', piece[at:end]) + '"')
            at = end + 1
        elif mark[0] in "{[":
            open_brackets.append(mark[0])
        elif open_brackets:
            open_brackets.pop()
        last = mark[0]
    out.append(piece[at:])
    return "".join(out)


def _string_ends(open_brackets: list[str], last: str, field_end: re.Pattern[str]) -> re.Pattern[str]:
    """Return the pattern of the quotes that can end a string after the character `last`."""
    if open_brackets[-1:] == ["["]:
        return _ITEM_END
    if last in ("{", ","):
        return _KEY_END
    return field_end if len(open_brackets) == 1 else _VALUE_END


def _string_end(piece: str, at: int, ends: re.Pattern[str]) -> int | None:
    while (quote := _QUOTE_OR_ESCAPE.search(piece, at)) is not None:
        if quote[0] == '"' and ends.match(piece, quote.start()):
            return quote.start()
        at = quote.end()
    return None
