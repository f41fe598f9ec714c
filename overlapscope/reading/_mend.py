"""Mended readings of a broken event.

Damage seen in real traces: unescaped backslashes and quotes in names, control characters, bare NaN, Infinity and N/A,
and a negative time written as `0.-05` (kineto's `fmtTs`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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
            end = _string_end(piece, at, _possible_ends(open_brackets, last, field_end))
            if end is None:
                return None
            out.append(_QUOTE_OR_ESCAPE.sub(_escape_quote, piece[at:end]) + '"')
            at = end + 1
        elif mark[0] in "{[":
            open_brackets.append(mark[0])
        elif open_brackets:
            open_brackets.pop()
        last = mark[0]
    out.append(piece[at:])
    return "".join(out)


def _possible_ends(open_brackets: list[str], last: str, field_end: re.Pattern[str]) -> re.Pattern[str]:
    """Return the pattern of the quotes that can end a string after the character `last`."""
    if open_brackets[-1:] == ["["]:
        return _ITEM_END
    if last in ("{", ","):
        return _KEY_END
    return field_end if len(open_brackets) == 1 else _VALUE_END


def _escape_quote(match: re.Match[str]) -> str:
    return match[0] if len(match[0]) == 2 else '\\"'


def _string_end(piece: str, at: int, ends: re.Pattern[str]) -> int | None:
    while (quote := _QUOTE_OR_ESCAPE.search(piece, at)) is not None:
        if quote[0] == '"' and ends.match(piece, quote.start()):
            return quote.start()
        at = quote.end()
    return None
