"""What a rule is, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.results import Window
from overlapscope.base.words import duration, listed, plural, share
from overlapscope.rules._claims import ClaimedPieces, Claims, Place
from overlapscope.rules.finding import Severity, Where
from overlapscope.trace.lost import CAUSES, Part

Fixes = tuple[tuple[str, ...], ...]
"""What following the advice amounts to: sets of interventions (`overlapscope whatif`), of which the best is taken."""


class Draft(Struct, frozen=True):
    """What a rule says of one device; rule, place and cost are added in the report."""

    title: str
    detail: str
    advice: str
    bound_ns: int = 0
    where: Where | None = None
    example: Window | None = None
    afterword: str = ""
    """What comes behind the detail and the places."""
    severity: Severity | None = None
    """Where it differs from the rule's own."""
    fixes: Fixes | None = None
    """Where they differ from the rule's own."""


Check = Callable[[Claims], Iterable[Draft]]
"""What a rule makes of one device."""


class Rule(Struct, frozen=True):
    """One rule with its explanation, which `overlapscope explain` prints."""

    id: str
    severity: Severity
    summary: str
    """One line for `overlapscope rules`."""
    meaning: str
    """What it means and why it costs time."""
    computation: str
    """How it is computed, the bound on what the fix saves included."""
    wrong: str
    """A minimal program that has it."""
    right: str
    """The same program without it."""
    check: Check
    rests_on: frozenset[Part] = CAUSES
    """The parts of the recording that it is computed from: where some of one may be lost, nobody knows what it would
    find. By default all that causes are found by."""
    fixes: Fixes = ()
    """What stands for the advice in a replay, `{call}` being the call at the finding's place, or the op that makes it;
    without any, a finding costs its bound."""

    @property
    def cost(self) -> str:
        """How what the fix saves is known, in a sentence."""
        if self.severity == "info":
            return "It costs nothing."
        if not self.fixes:
            return "No replay can tell what the fix saves, so the cost is the upper bound."
        sets = [f"`{' + '.join(fix).replace('{call}', 'CALL')}`" for fix in self.fixes]
        said = f"{'the best of ' if len(sets) > 1 else ''}{listed(sets)}"
        how = f"The recording is replayed with {said} (`overlapscope whatif`)"
        return f"{how}. If that is not possible, the cost is the upper bound."


def on_claimed(rule: str, draft: Callable[[Claims, ClaimedPieces], Draft]) -> Check:
    """The check of a rule that time is shared out to: what it says of that time, once there is enough of it."""

    def check(claims: Claims) -> Iterator[Draft]:
        pieces = claims.of(rule)
        if claims.matters(pieces.time_ns):
            yield claimed(claims, pieces, draft(claims, pieces))

    return check


def claimed(claims: Claims, pieces: ClaimedPieces, draft: Draft) -> Draft:
    """The draft with what is to be said of any pieces of time: their share of the time, where in the program they are
    lost, and the longest of them."""
    places = pieces.places(claims.trace)
    return replace(
        draft,
        title=f"{draft.title} ({share(pieces.time_ns, claims.judged_ns)} of time)",
        detail=f"{draft.detail}{spread(places)}{draft.afterword}",
        bound_ns=pieces.time_ns,
        where=places[0].where if places else None,
        example=pieces.example,
    )


_LONGEST_NAME = 90


def streams(ids: Sequence[int]) -> str:
    """`stream 7`, `streams 7 and 20`."""
    return f"stream{'s' if len(ids) != 1 else ''} {listed(ids)}"


def name(text: str) -> str:
    """A name out of a trace, on one line and not too long. Views escape it."""
    printable = text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
    flat = " ".join(printable.split())
    return flat if len(flat) <= _LONGEST_NAME else flat[: _LONGEST_NAME - 3] + "..."


def place(where: Where) -> str:
    """`cudaStreamSynchronize in aten::item at train.py:12 in step`; empty if nothing is known."""
    parts = [name(where.call)] if where.call else []
    if where.op:
        parts.append(f"in {name(where.op)}" if parts else name(where.op))
    if where.line:
        parts.append(f"at {name(where.line)}")
    return " ".join(parts)


def lost(pieces: ClaimedPieces) -> str:
    """`copies were exposed for 2.42 ms and the GPU was idle for 59.7 us`: what any pieces of time are."""
    parts = (("copies were exposed for", pieces.exposed_ns), ("the GPU was idle for", pieces.idle_ns))
    return listed(f"{what} {duration(ns)}" for what, ns in parts if ns)


def spread(places: Iterable[Place], most: int = 3) -> str:
    """The costliest places in one sentence; empty if none is known."""
    known = [*islice(((text, p) for p in places if (text := place(p.where))), most)]
    if not known:
        return ""
    return (
        " By place: "
        + "; ".join(f"{duration(p.time_ns)} ({plural(p.count, 'time')}) {text}" for text, p in known)
        + "."
    )
