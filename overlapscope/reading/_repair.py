"""Events out of JSON that is not quite JSON.

Damage seen in real traces: unescaped backslashes and quotes in names, control characters, invalid UTF-8, bare
NaN, Infinity and N/A, a negative time written as `0.-05` (kineto's `fmtTs`), missing, doubled and trailing
commas.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Any, NoReturn

from msgspec import Struct, field

from overlapscope.reading._categories import Table, table_of
from overlapscope.reading._events import Complete, Instant, convert
from overlapscope.reading._times import decimal

BOUNDARY = re.compile(r"\}(?=[\s,]*\{)|\}(?=\s*\](?:\s*\}|\s*,\s*\"|\s*$))")
"""Where an event may end: before the next event or the array's end."""

END_SIGHT = 2000
"""Where this many characters after a bracket hold another event, the bracket does not end the events."""

_MAX_PIECES = 8
"""So many candidate ends are tried for a broken event before it is given up."""
_MAX_JOINED = 4
"""So many pieces are put together to mend an event whose name looks like the boundary between two."""
_MAX_EVENT_CHARS = 1 << 16
_MAX_QUOTED_CHARS = 1 << 13
"""Longer stretches are not searched for quotes out of place."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_SEPARATOR = re.compile(r"[\s,]*")
_FOOTER = re.compile(r"\]\s*(?:\Z|\}\s*\Z|,\s*(?:\Z|\"[^\"]*(?:\Z|\"\s*(?::|\Z))))")
_PHASE = re.compile(r"\"ph\"\s*:")
_EVENT_START = re.compile(r"\{[^{}]{0,300}\"ph\"\s*:")
_SCALAR = re.compile(r"(?:\"(?:[^\"\\]|\\.)*\"|[-+.\w]+)(?=[\s,\]]|\Z)", re.DOTALL)
_BARE_WORD = re.compile(
    r"(?<=[:,\[\s])(?:[-+]?(?:nan(?:\([^()]*\))?|inf(?:inity)?)|N/A|undefined|None|True|False)(?=\s*[,}\]])",
    re.IGNORECASE,
)
_NEGATIVE_FRACTION = re.compile(r"(?<=[:\s])-?(\d+)\.-(\d+)")
_BAD_ESCAPE = re.compile(r"\\(?:([\"\\/bfnrt]|u[0-9a-fA-F]{4})|)")


_CUT = object()


class Recovered(Struct):
    """What was found in a stretch of the events array."""

    events: list[Complete | Instant | None] = field(default_factory=list)
    """None for an event of no interest."""
    rest: str | None = None
    """Text after the last event that could be decided on; None where the array ended."""
    footer: str = ""
    """Text after the array's closing bracket."""
    repaired_events: int = 0
    lost_events: int = 0
    lost_bytes: int = 0
    examples: list[str] = field(default_factory=list)


def _reject(word: str) -> NoReturn:
    raise ValueError(word)


_strict = json.JSONDecoder(parse_float=decimal, parse_constant=_reject)
_lenient = json.JSONDecoder(parse_float=decimal, parse_constant=lambda _: None, strict=False)


def recover(text: str, *, final: bool) -> Recovered:
    """The events at the start of `text`, which begins at an event of the array or at a comma before one.

    Bytes that are not UTF-8 are expected as `surrogateescape` leaves them.

    With `final` False, an event that the end of `text` cuts is left in `rest` for when more text has come;
    with `final` True it is lost. However the text is damaged, this takes time in proportion to its length.
    """
    return _Recovery(text, final=final).all()


class _Recovery:
    """Goes through damaged text once. Where events end and begin is looked up, so that no search is made twice."""

    def __init__(self, text: str, *, final: bool) -> None:
        self._text = text
        self._final = final
        self._ends = [match.end() for match in BOUNDARY.finditer(text)]
        self._phases = [match.start() for match in _PHASE.finditer(text)]
        self._starts = [match.start() for match in _EVENT_START.finditer(text)]
        self._last_brace = text.rfind("{")
        self._credit = 4 * len(text) + _MAX_EVENT_CHARS
        """Characters that may yet be read in vain for objects with boundaries inside."""

    def all(self) -> Recovered:
        text, recovered, at = self._text, Recovered(), 0
        invalid = not text.isascii() and _SURROGATE.search(text) is not None
        while True:
            start = _behind_separator(text, at)
            if start == len(text):
                recovered.rest = ""
                return recovered
            if text[start] == "]" and len(text) - start < END_SIGHT and not self._final:
                recovered.rest = text[start:]
                return recovered
            if text[start] == "]" and self._is_array_end(start):
                recovered.footer = text[start + 1 :]
                return recovered
            if text[start] in "[]":
                # No event is a list. Read as one, it would take all events behind it along.
                at = start + 1
                recovered.lost_bytes += 1
                _remember(recovered, "lost: a bracket amid the events", text[start : start + 80])
                continue
            value, at, damaged = self._event(start) if text[start] == "{" else (*self._behind_noise(start), True)
            if value is _CUT:
                recovered.rest = text[start:]
                return recovered
            typed = None if value is None else convert(value)
            if typed is None:
                _lose(recovered, text, start, at)
                continue
            event, repaired = typed
            damaged |= invalid and _SURROGATE.search(text, start, at) is not None and _is_read(event, value)
            recovered.events.append(event)
            if repaired or damaged:
                recovered.repaired_events += 1
                _remember(recovered, "repaired", text[start:at])

    def _event(self, start: int) -> tuple[Any, int, bool]:
        """The object at `start`, where to go on, and whether it was damaged.

        It is None where it is lost, and _CUT where it may only be too short so far.
        """
        text, ends = self._text, self._ends_behind(start)
        if ends and ends[0] - start <= _MAX_EVENT_CHARS:
            # Only the stretch up to the boundary, as the error for a broken event takes as long as its text.
            piece = text[start : ends[0]]
            for decoder, damaged in ((_strict, False), (_lenient, True)):
                value, end = _first(decoder, piece)
                if end == len(piece):
                    return value, ends[0], damaged
                if end:
                    break
            # An object at the piece's beginning is taken where no reading makes one of the whole piece.
            self._credit -= len(piece) if end else 0
            for reading in _mended(piece) if not end or self._credit > 0 else ():
                whole = _whole(reading)
                if whole is not None:
                    return whole, ends[0], True
            if end:
                return value, start + end, damaged
        # The boundary lies inside the event, or the text ends before it does.
        for decoder, damaged in ((_strict, False), (_lenient, True)):
            if self._credit <= 0:
                break
            try:
                value, end = decoder.raw_decode(text, start)
            except json.JSONDecodeError as error:
                self._credit -= error.pos - start
            except (ValueError, RecursionError):
                self._credit -= _MAX_EVENT_CHARS
            else:
                return value, end, damaged
        return *self._mend(start, ends), True

    def _mend(self, start: int, ends: list[int]) -> tuple[Any, int]:
        """The broken event at `start` over several boundaries, mended, and its end; or None and where to go on.

        With `final` False and too few boundaries to be sure that it is broken and not only cut, _CUT.
        """
        for end in ends[1:_MAX_JOINED]:
            for reading in islice(_mended(self._text[start:end]), 2):
                value = _whole(reading)
                if value is not None:
                    return value, end
        enough = len(ends) == _MAX_PIECES or (ends and ends[-1] - start > _MAX_EVENT_CHARS)
        if not self._final and not enough:
            return _CUT, start
        for end in ends:
            if self._event_follows(end):
                return None, end
        return None, ends[-1] if ends else len(self._text)

    def _behind_noise(self, start: int) -> tuple[Any, int]:
        """None and where to go on behind what is no object, or _CUT where the text may end inside it."""
        text = self._text
        scalar = _SCALAR.match(text, start)
        if scalar is not None and (scalar.end() < len(text) or self._final):
            return None, scalar.end()
        following = bisect_left(self._starts, start)
        if following < len(self._starts):
            return None, self._starts[following]
        if self._final:
            return None, len(text)
        if len(text) - start < _MAX_EVENT_CHARS:
            return _CUT, start
        # What may be the beginning of an event, or the end of all.
        chosen = [at for at in (self._last_brace, text.find("]", start + 1)) if at > start]
        return None, min(chosen, default=len(text))

    def _ends_behind(self, start: int) -> list[int]:
        """The boundaries behind `start` that matter to an event there: the last may be too far away for one."""
        first = bisect_right(self._ends, start)
        ends = self._ends[first : first + _MAX_PIECES]
        return ends[: bisect_right(ends, start + _MAX_EVENT_CHARS) + 1]

    def _event_follows(self, at: int) -> bool:
        start = _behind_separator(self._text, at)
        if start == len(self._text) or self._text[start] == "]":
            return start == len(self._text) or self._is_array_end(start)
        return _EVENT_START.match(self._text, start) is not None

    def _is_array_end(self, at: int) -> bool:
        """Whether the bracket at `at` ends the events and not, after an event that was lost, a list within one."""
        phase = bisect_left(self._phases, at)
        near = phase < len(self._phases) and self._phases[phase] < at + END_SIGHT
        return not near and _FOOTER.match(self._text, at) is not None


def _is_read(event: Complete | Instant | None, value: dict[str, Any]) -> bool:
    """Return whether bytes that are not UTF-8 stand in what is read of an event: elsewhere no way of decoding looks."""
    if not isinstance(event, Complete) or table_of[event.cat] == Table.IGNORED:
        return False
    texts = (value.get(key) for key in ("cat", "name", "pid", "tid"))
    return any(isinstance(text, str) and _SURROGATE.search(text) is not None for text in texts)


def _behind_separator(text: str, at: int) -> int:
    separator = _SEPARATOR.match(text, at)
    return at if separator is None else separator.end()


def _first(decoder: json.JSONDecoder, piece: str) -> tuple[Any, int]:
    """The value that `piece` begins with, and its end; 0 where there is none."""
    try:
        return decoder.raw_decode(piece)
    except (ValueError, RecursionError):
        return None, 0


def _whole(piece: str) -> dict[str, Any] | None:
    """The event that is all of `piece`; None where there is none."""
    value, end = _first(_lenient, piece)
    return value if end == len(piece) and isinstance(value, dict) and "ph" in value else None


def _mended(piece: str) -> Iterator[str]:
    """Readings of a broken event, the least daring first; none of what has no phase, which no event lacks."""
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


_STRUCTURE = re.compile(r"[\"{}\[\]]")
_KEY_END = re.compile(r"\"\s*:")
_VALUE_END = re.compile(r"\"\s*(?:,\s*\"[^\"\n]{0,200}\"\s*:|(?:[}\]]\s*)+(?:,\s*[\"{\[]|$))")
# Between an event's own fields only these follow; a name may hold anything else that looks like JSON.
_FIELD_END = re.compile(
    r"\"\s*(?:,\s*\"(?:ph|cat|name|pid|tid|ts|dur|args|id|bp|s)\"\s*:|(?:[}\]]\s*)+(?:,\s*[\"{\[]|$))"
)
_ITEM_END = re.compile(r"\"\s*(?:,\s*[\"{\[\d\-tfn]|\]\s*(?:[,}\]]|$))")
_QUOTE_OR_ESCAPE = re.compile(r"\\.|\"", re.DOTALL)
_IN_STRING = re.compile(r"\"|\\.", re.DOTALL)


def _escape_quotes(piece: str, field_end: re.Pattern[str]) -> str | None:
    """`piece` with the quotes inside strings escaped; None where no reading makes sense.

    A quote ends a value only where what follows can follow a value, so that `{"device": "cpu"}.py` within a
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
        if mark[0] in "{[":
            open_brackets.append(mark[0])
            last = mark[0]
        elif mark[0] in "}]":
            if open_brackets:
                open_brackets.pop()
            last = mark[0]
        else:
            if open_brackets[-1:] == ["["]:
                ends = _ITEM_END
            elif last in ("{", ","):
                ends = _KEY_END
            else:
                ends = field_end if len(open_brackets) == 1 else _VALUE_END
            end = _string_end(piece, at, ends)
            if end is None:
                return None
            inner = piece[at:end]
            out.append(_QUOTE_OR_ESCAPE.sub(_escape_quote, inner) if '"' in inner else inner)
            out.append('"')
            last = '"'
            at = end + 1
    out.append(piece[at:])
    return "".join(out)


def _escape_quote(match: re.Match[str]) -> str:
    return match[0] if len(match[0]) == 2 else '\\"'


def _string_end(piece: str, at: int, ends: re.Pattern[str]) -> int | None:
    while (quote := _IN_STRING.search(piece, at)) is not None:
        if quote[0] == '"' and ends.match(piece, quote.start()):
            return quote.start()
        at = quote.end()
    return None


def _lose(recovered: Recovered, text: str, start: int, end: int) -> None:
    recovered.lost_events += 1
    recovered.lost_bytes += len(text[start:end].encode("utf-8", "surrogateescape"))
    _remember(recovered, "lost", text[start:end])


def _remember(recovered: Recovered, what: str, piece: str) -> None:
    if len(recovered.examples) < 3:
        recovered.examples.append(f"{what}: {' '.join(piece[:200].split())[:100]}")
