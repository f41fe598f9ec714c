"""Names from traces that a user asks for."""

from __future__ import annotations

from collections.abc import Collection

from overlapscope.base.words import clean, did_you_mean, listed
from overlapscope.errors import NotInTrace

_LISTED = 20


def check_known(source: str, what: str, asked: str, known: Collection[str], *, none: str = "none") -> None:
    """Raises NotInTrace, with what there is, where `asked` is not among the names known of a `what`: `range`.

    `none` is what is said to be there where nothing is.
    """
    if asked in known:
        return
    names = [clean(name, 80) for name in known]
    hint = did_you_mean(asked, known)
    raise NotInTrace(f"{source}: there is no {what} {asked!r}{hint}; {what}s: {listed(names, _LISTED) or none}.")


def check_device(source: str, device: int | None, known: Collection[int]) -> None:
    """Raises NotInTrace, with what there is, where a device that is asked for did nothing; None asks for none."""
    if device is not None and device not in known:
        did = listed(known) or "none"
        raise NotInTrace(f"{source}: there is no device {device}; devices that did anything: {did}.")
