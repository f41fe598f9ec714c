"""Result of a joint prediction and its document, with the names of `overlapscope whatif RANKS --format json`.

Times are integer nanoseconds, of an average step: of the program without the profiler if all ranks timed that, else as
recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, Literal

import msgspec

from overlapscope.base.registry import Shown
from overlapscope.base.saved import SCHEMA_VERSION, Tool
from overlapscope.base.words import Unit, between, clean, clean_lines, duration, percent, plural, unit_for
from overlapscope.documents.model import Block, Document, Heading, Items, Section, Text, detail, panel, with_code
from overlapscope.documents.table import Cell, Column, Table, Tone, prose, table_of, words
from overlapscope.prediction.result import Estimate


class JointRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank before and after the changes."""

    rank: int
    source: str
    recorded_step_ns: int
    replayed_step_ns: int
    """Step of the joint replay without changes."""
    predicted_step_ns: Estimate | None
    waited_ns: int
    """Time per step that the rank waits for others in collectives, in the joint replay without changes."""
    predicted_waited_ns: int | None


class JointChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was asked for, and its effect."""

    change: str
    """Its option with its argument: `no-straggler`, `bandwidth 2x`, `pin`."""
    title: str
    touched: int
    """Number of ranks, collectives, copies or calls that it changed; 0 if it does not apply."""
    what: str
    """Effect, in a sentence."""
    assumptions: tuple[str, ...]


class JointWhatIf(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Predicted step of a job."""

    shown_by: ClassVar[str] = "overlapscope.plugins.jobs.joint.result:verdict_and_document"
    kind: Literal["whatif-ranks"] = "whatif-ranks"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    valid: bool
    """True if predictions are possible."""
    reasons: tuple[str, ...]
    """Reasons why they are not, a sentence each."""
    meetings: int
    """Number of collectives at which the ranks are joined."""
    steps: int
    """Number of steps that the figures are the mean of."""
    recorded_step_ns: int | None
    replayed_step_ns: int | None
    """The job's step without changes: in the joint replay, or the plain step."""
    predicted_step_ns: Estimate | None
    """The job's step with the changes; None without changes or if `valid` is false."""
    gain_ns: Estimate | None
    """`replayed_step_ns` minus the prediction; `low` belongs to the prediction's `high`."""
    gain_pct: float | None
    changes: tuple[JointChange, ...]
    ranks: tuple[JointRank, ...]
    plain: bool = False
    """True if all times but the recorded ones are of the program without the profiler."""


# -- Document ----------------------------------------------------------------------------------------

MAX_ROWS: Final = 16
"""Maximum number of ranks with a row each; of more ranks, those that change most are shown."""
_WORTH_PCT: Final = 1.0
"""Maximum change, in percent, that is neither good nor bad."""
_NAME_LIMIT: Final = 200


def verdict_and_document(result: JointWhatIf) -> tuple[str, object]:
    """Return the answer, and a function that builds the document."""
    return headline(result), lambda: document(result)


def document(result: JointWhatIf, *, offered: Table | None = None) -> Document:
    """Return the document of a prediction.

    Args:
        offered: Table of the available changes, if the user named none.
    """
    title = f"overlapscope whatif: {plural(len(result.ranks), 'rank')}" if result.ranks else "overlapscope whatif"
    blocks: list[Block] = [Heading(title, 1), _answer(result)]
    if not result.valid:
        blocks.append(Items(tuple(with_code(clean_lines(reason)) for reason in result.reasons)))
        return Document(title, tuple(blocks))
    blocks.append(_ranks(result))
    changes = []
    for number, change in enumerate(result.changes, 1):
        assumed = [Text(f"Assumed: {assumption}", "muted") for assumption in change.assumptions]
        title_of_change = f"{number}. {clean(change.change, _NAME_LIMIT)}: {change.title}"
        changes.append(panel(title_of_change, Text(clean_lines(change.what)), *detail("assumptions", assumed)))
    if changes:
        blocks.append(Section(tuple(changes), "Changes"))
    if offered is not None:
        blocks.append(offered)
    return Document(title, tuple(blocks))


def _answer(result: JointWhatIf) -> Section:
    gain = result.gain_pct or 0
    tone: Tone = "" if abs(gain) < _WORTH_PCT else "good" if gain > 0 else "poor"
    remarks = []
    if result.valid:
        joined = f"Replays of {plural(len(result.ranks), 'rank')}, joined at {plural(result.meetings, 'collective')}"
        steps = f"average of {result.steps:,} steps" if result.steps > 1 else "one step"
        how = "without the profiler" if result.plain else "as recorded"
        remarks = [Text(f"{joined}; {steps}, {how}", "muted")]
    return Section((Text(headline(result), tone, strong=True), *remarks), kind="verdict", tone=tone)


def headline(result: JointWhatIf) -> str:
    """Return the gain of the changes, or why there is no prediction."""
    before, after, gain = result.replayed_step_ns, result.predicted_step_ns, result.gain_ns
    if not result.valid or before is None:
        return "No prediction for this job."
    unit = unit_for(before)
    if after is None or gain is None:
        return f"The joint simulation matches the recordings ({unit.text(before)}), so changes can be predicted."
    if not any(change.touched for change in result.changes):
        return "A step would take as long as now: these changes do not apply to these recordings."
    reach = f"between {reach}" if (reach := _reach(after, unit)) else ""
    if unit.text(after.value) == unit.text(before):
        return f"A step of the job would take as long as now, {unit.text(before)}{f' ({reach})' if reach else ''}."
    share = f"{percent(abs(result.gain_pct or 0))} {'less' if gain.value > 0 else 'more'}"
    if gain.value > 0:
        share += (
            f"; saves at most {duration(gain.high)}" if gain.low <= 0 else f"; saves {between(gain.low, gain.high)}"
        )
    elif reach:
        share += f"; {reach}"
    return f"A step of the job would take {unit.text(after.value)} instead of {unit.text(before)} ({share})."


def _reach(estimate: Estimate | None, unit: Unit) -> str:
    """Return the ends of an interval; empty if they look the same."""
    low, high = (unit.number(estimate.low), unit.number(estimate.high)) if estimate is not None else ("", "")
    return "" if low == high else f"{low} and {high} {unit.name}"


def _ranks(result: JointWhatIf) -> Table:
    """Return the table of the ranks that change most, in the order of ranks."""
    unit = unit_for(max((rank.replayed_step_ns for rank in result.ranks), default=0))

    def change(rank: JointRank) -> tuple[int, int]:
        then = rank.waited_ns if rank.predicted_waited_ns is None else rank.predicted_waited_ns
        return -abs(rank.waited_ns - then), rank.rank

    def time(title: str, of: Callable[[JointRank], int | None]) -> tuple[Column, Callable[[JointRank], Cell]]:
        return Column(f"{title}, {unit.name}"), lambda rank: Cell(unit.number(of(rank)), of(rank))

    shown = sorted(sorted(result.ranks, key=change)[:MAX_ROWS], key=lambda rank: rank.rank)
    then = result.predicted_step_ns is not None
    left_out = len(result.ranks) - len(shown)
    return table_of(
        shown,
        (words("rank"), lambda rank: Cell(str(rank.rank), rank.rank)),
        time("step now", lambda rank: rank.replayed_step_ns),
        time("waits now", lambda rank: rank.waited_ns),
        time("step then", lambda rank: None if (step := rank.predicted_step_ns) is None else step.value)
        if then
        else None,
        (prose("between", spare=1), lambda rank: Cell(_reach(rank.predicted_step_ns, unit))) if then else None,
        time("waits then", lambda rank: rank.predicted_waited_ns) if then else None,
        title="Ranks",
        note=f"{plural(left_out, 'rank')} that change less are left out; --format json has all." if left_out else "",
    )
