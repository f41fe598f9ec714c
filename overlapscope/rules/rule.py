"""Rules and their drafts of findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.figures import Window
from overlapscope.base.words import listed, share
from overlapscope.rules._claims import ClaimedPieces, Claims, Place
from overlapscope.rules.finding import Effort, Severity
from overlapscope.trace.host import Where
from overlapscope.trace.lost import PARTS_FOR_FINDINGS, Part
from overlapscope.trace.op_names import op_words

Fixes = tuple[tuple[str, ...], ...]
"""Sets of interventions (`overlapscope whatif`) that represent the advice. The best set is used."""


NO_OP = "where no op was recorded"


class Draft(Struct, frozen=True):
    """A rule's finding on one device, to which the report adds rule, place and cost."""

    title: str
    detail: str
    advice: str = ""
    """Text on what to change; empty for the text of the case."""
    case: str = "fix"
    """Case of the rule's advice (`explained.RuleTexts.advice`)."""
    bound_ns: int = 0
    idle_ns: int = 0
    """Part of it in which the device is idle."""
    where: Where | None = None
    example: Window | None = None
    for_all: bool = False
    """True if the advice is the same in every framework, although other advice of the rule isn't."""
    afterword: str = ""
    """Text after the detail and the places."""
    remark: str = ""
    """End of the title, after the share of the time."""
    nameless: str = NO_OP
    """Place of time for which no op, call or line is known, in words."""
    severity: Severity | None = None
    """Severity, where it differs from the rule's."""
    fixes: Fixes | None = None
    """Fixes, where they differ from the rule's."""


Check = Callable[[Claims], Iterable[Draft]]
"""Function that applies a rule to one device."""


def _find_nothing(claims: Claims) -> Iterable[Draft]:
    return ()


class Rule(Struct, frozen=True):
    """A rule. Files in `explained` and `examples`, next to its module, explain it."""

    id: str
    check: Check = _find_nothing
    severity: Severity = "warning"
    effort: Effort = "restructuring"
    rests_on: frozenset[Part] = PARTS_FOR_FINDINGS
    """Parts of the recording that it is computed from; by default, all parts that causes need.

    If events of one of them may be lost, there may be more to find: the rule can't pass. A finding
    stands unless these are ops of the GPU, beside which less would be exposed or idle.
    """
    fixes: Fixes = ()
    """Interventions that represent the advice in a replay.

    `{call}` stands for the call at the finding's place, or the op that makes it. Without interventions, a finding costs
    its bound.
    """

    @property
    def cost(self) -> str:
        """Method that determines the saving, as a sentence."""
        if self.severity == "info":
            return "It costs nothing."
        if not self.fixes:
            return "No replay can tell what the fix saves, so the cost is the upper bound."
        sets = [f"`{' + '.join(fix).replace('{call}', 'CALL')}`" for fix in self.fixes]
        changes = f"{'the best of ' if len(sets) > 1 else ''}{listed(sets)}"
        how = f"The recording is replayed with {changes} (`overlapscope whatif`)"
        return f"{how}. If that is not possible, the cost is the upper bound."

    def checking(self, check: Check) -> Rule:
        """Decorate the function that applies the rule."""
        return replace(self, check=check)

    def on_claimed(self, draft: Callable[[Claims, ClaimedPieces], Draft]) -> Rule:
        """Decorate the function that makes the finding of a rule that is assigned time, once there is enough time."""

        def check(claims: Claims) -> Iterator[Draft]:
            pieces = claims.of(self.id)
            if claims.matters(pieces.time_ns):
                yield claimed(claims, pieces, draft(claims, pieces))

        return replace(self, check=check)


def claimed(claims: Claims, pieces: ClaimedPieces, draft: Draft) -> Draft:
    """Complete a draft with facts on its pieces: their share of the time, their places, and the longest one."""
    places = claims.places(pieces)
    return replace(
        draft,
        title=f"{draft.title} ({share(pieces.time_ns, claims.judged_ns)}){draft.remark}",
        detail=f"{draft.detail}{spread(claims, places, draft.nameless)}{draft.afterword}",
        bound_ns=pieces.time_ns,
        idle_ns=pieces.idle_ns,
        where=_where(places, draft.where),
        example=pieces.example,
    )


def _where(places: Sequence[Place], sampled: Where | None) -> Where | None:
    """Return the costliest place, if possible one with a name; with the line of samples, if the recording has none."""
    if not places:
        return sampled
    # If most of the time has no name, a name would mislead.
    first = next((p.where for p in places if place(p.where) and 2 * p.time_ns >= places[0].time_ns), places[0].where)
    return first if sampled is None or first.line is not None else msgspec.structs.replace(first, line=sampled.line)


_LONGEST_NAME = 90


def streams(ids: Sequence[int]) -> str:
    """Return streams as text, such as `stream 7` or `streams 7 and 20`."""
    return f"stream{'s' if len(ids) != 1 else ''} {listed(ids)}"


def name(text: str) -> str:
    """Return a name from a trace on one line and not too long. Views escape it."""
    printable = text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
    flat = " ".join(printable.split())
    return flat if len(flat) <= _LONGEST_NAME else flat[: _LONGEST_NAME - 3] + "..."


def place(where: Where) -> str:
    """Return a place as text, such as `cudaStreamSynchronize in aten::item at train.py:12`; empty if unknown."""
    parts = [name(where.call)] if where.call else []
    if where.op:
        op = name(op_words(where.op))
        parts.append(f"in {op}" if parts else op)
    if where.line:
        parts.append(f"at {name(where.line)}")
    return " ".join(parts)


def lost(claims: Claims, pieces: ClaimedPieces) -> str:
    """Return the time of pieces as text.

    For example: `copies ran alone for 2.42 ms and the GPU was idle for 59.7 us`.
    """
    parts = (("copies ran alone for", pieces.exposed_ns), (f"the {claims.gpu} was idle for", pieces.idle_ns))
    return listed(f"{what} {claims.time(ns)}" for what, ns in parts if ns)


def spread(claims: Claims, places: Iterable[Place], nameless: str = NO_OP) -> str:
    """Return the three costliest places as a sentence; empty if none has a name.

    Args:
        claims: Claims of the device.
        places: Places, costliest first.
        nameless: Words for places without a name.
    """
    places = list(places)
    named = [*islice(((text, p) for p in places if (text := place(p.where))), 3)]
    if not named:
        return ""
    if not place(places[0].where):
        # Without it, the costliest op would look like most of the time.
        named = [(nameless, places[0]), *named[:2]]
    return (
        f" By place{', per step' if claims.steps else ''}: "
        + "; ".join(f"{claims.time(p.time_ns)} ({claims.times(p.count, 'time')}) {text}" for text, p in named)
        + "."
    )
