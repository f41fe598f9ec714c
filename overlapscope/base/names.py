"""Names from traces that a user asks for."""

from __future__ import annotations

from collections.abc import Collection

from overlapscope.base.words import clean, did_you_mean, listed
from overlapscope.errors import UsageError

_LISTED = 20


def check_known(source: str, what: str, asked: str, known: Collection[str], *, none: str = "none") -> None:
    """Raises UsageError, with what there is, where `asked` is not among the names known of a `what`: `range`.

    `none` is what is said to be there where nothing is.
    """
    if asked in known:
        return
    names = [clean(name, 80) for name in known]
    hint = did_you_mean(asked, known)
    raise UsageError(f"{source}: there is no {what} {asked!r}{hint}; {what}s: {listed(names, _LISTED) or none}.")
