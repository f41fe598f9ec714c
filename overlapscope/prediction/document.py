"""Document of a prediction: the answer, its figures, the changes to make, and its assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from msgspec.structs import replace

from overlapscope.base.words import Unit, bare_share, clean, clean_lines, duration, percent, saved_between, unit_for
from overlapscope.catalog.buckets import bucket_of
from overlapscope.documents.model import (
    Block,
    Document,
    Heading,
    Items,
    Section,
    Text,
    bar_of,
    detail,
    panel,
    with_code,
)
from overlapscope.documents.table import Cell, Column, Table, Tone, prose, rows, words
from overlapscope.prediction.result import Assumption, Constant, Estimate, WhatIf

_NAME_LIMIT: Final = 200
_TEXT_LIMIT: Final = 1000
_REMEDY: Final = (
    "With PyTorch on a GPU, recording again may help: use `overlapscope run` or `overlapscope.record`, which note what "
    "each event wait waits for, and start the recording after a synchronize, so that no op was launched before it."
)
_WORTH_PCT: Final = 1.0
"""Maximum change, in percent, that is neither good nor bad."""
_WRAPPED: Final = prose("")
"""A column of sentences, or of names that must not be cut."""
_BETWEEN: Final = Column("between", id="between", spare=True)
_ORIGINS: Final = {
    "calibration": "calibration",
    "trace": "this recording",
    "table": "H200 table",
}


def document(result: WhatIf, *, offered: Table | None = None) -> Document:
    """Return the document of a prediction.

    Args:
        offered: Table of the available changes, if the user named none.
    """
    title = f"overlapscope: {clean(PurePath(result.source).name, _NAME_LIMIT)}, what if"
    is_small = result.gain_pct is None or abs(result.gain_pct) < _WORTH_PCT
    tone: Tone = "" if is_small else "good" if (result.gain_pct or 0) > 0 else "poor"
    verdict = Section((Text(headline(result), tone, strong=True), *_remarks(result)), "", "verdict", tone, id="whatif")
    blocks: list[Block] = [Heading("overlapscope whatif", 1), verdict]
    if not result.replay.valid:
        reasons = [clean(reason, _TEXT_LIMIT) for reason in result.replay.reasons]
        blocks.append(Items(tuple(map(with_code, [*reasons, _REMEDY]))))
        return Document(title, tuple(blocks))
    changed = changes_anything(result)
    if changed:
        # The first table with rows answers the question: the ladder, or else the buckets of the step.
        first, *more = (table for table in (ladder(result), buckets(result)) if table.rows)
        blocks += [first, *detail("where the time goes", more)]
    if result.interventions:
        blocks.append(Section(tuple(_changes(result)), "Changes"))
    if changed:
        blocks += _rests_on(_assumptions(result))
        blocks += detail("hardware constants", _rests_on(_constants(result)))
    fidelity = panel("Replay and recording", *map(Text, _fidelity(result)), folded=changed)
    blocks += detail("fidelity of the replay", [fidelity])
    if offered is not None:
        blocks.append(offered)
    return Document(title, tuple(blocks))


def _rests_on(table: Table) -> Iterator[Block]:
    if table.rows:
        yield panel(table.title, replace(table, title=""), folded=True)


def _remarks(result: WhatIf) -> Iterator[Text]:
    """Yield the subject of the answer, whose step it is, and the doubts that the interval doesn't cover."""
    named = [PurePath(result.source).name, *([f"rank {result.rank}"] if result.rank is not None else [])]
    named += [result.device_name or "a GPU without a name", f"device {result.device}"]
    subject = ", ".join(clean(name, _NAME_LIMIT) for name in named)
    if not result.replay.valid:
        yield Text(subject, "muted")
        return
    what = f"average of {result.steps:,} steps" if result.steps > 1 else "one step"
    yield Text(f"{subject}; {what if result.steps else 'without steps: all that was recorded'}", "muted")
    of, plain, predicted_ns = unit(result), result.plain, result.recorded_predicted_step_ns
    program = (
        "Figures include the cost of recording. Pass the step time without the profiler as --plain-step; for PyTorch, "
        "`overlapscope run` measures it."
    )
    if plain is not None:
        program = (
            f"A step takes {of.text(plain.step_ns)} without the profiler ({plain.origin}), "
            f"{of.text(result.recorded_step_ns)} with it"
        )
        if predicted_ns is not None and changes_anything(result):
            program += f"; with the profiler and the changes, it would take {of.text(predicted_ns)}"
        program += "."
    yield Text(with_code(program), "muted")
    for reason in result.replay.reasons:
        yield Text(with_code(f"Caveat: {clean(reason, _TEXT_LIMIT)}"), "fair")


def _changes(result: WhatIf) -> Iterator[Section]:
    """Yield a section for each change, in the order in which to make them: the ladder's, if there is one."""
    rungs = reversed([*enumerate(result.ladder)])
    rung_of = {text: number for number, rung in rungs for text in rung.interventions}
    in_order = sorted(result.interventions, key=lambda change: rung_of.get(change.text, len(result.ladder)))
    for number, change in enumerate(in_order, 1):
        blocks: list[Block] = [Text(clean_lines(f"In the recording: {change.what}" if change.touched else change.what))]
        if change.touched:
            what, _, how = clean_lines(change.advice).partition("\n")
            blocks.append(Text(with_code(what), strong=True))
            places = [Text(f"At {clean(place, _NAME_LIMIT)}", "muted") for place in change.where]
            blocks += detail("how and where to make each change", [*([Text(with_code(how))] if how else []), *places])
        yield panel(f"{number}. {clean(change.text, _NAME_LIMIT)}: {clean(change.title, 500)}", *blocks)


# -- Sentences ------------------------------------------------------------------------------------


def unit(result: WhatIf) -> Unit:
    """Return the unit of time that suits the longer step."""
    predicted = result.predicted_step_ns
    return unit_for(max(result.baseline_step_ns, result.recorded_step_ns, predicted.value if predicted else 0))


def headline(result: WhatIf) -> str:
    """Return the gain of the changes, or why there is no prediction."""
    period = "A step" if result.steps else "The recorded part"
    of, predicted, gain = unit(result), result.predicted_step_ns, result.gain_ns
    if predicted is None or gain is None:
        return "No prediction: a simulation of this recording does not match it."
    was = of.text(result.unchanged_step_ns)
    if not result.interventions and result.ladder:
        return f"{period} takes {was}, and no known change makes it shorter."
    if not result.interventions:
        recorded, again = of.text(result.recorded_step_ns), of.text(result.replayed_step_ns)
        matches = (
            f"matches the recording ({recorded})" if recorded == again else f"takes {again}, the recording {recorded}"
        )
        return f"The simulation {matches}, so changes can be predicted."
    if not changes_anything(result):
        return f"{period} would take as long as now: these changes do not apply to this recording."
    value = of.text(predicted.value)
    if was == value:
        reach = interval(predicted, of).replace(" to ", " and ")
        return f"{period} would take as long as now, {was}{f' (between {reach} {of.name})' if reach else ''}."
    more = "less" if gain.value > 0 else "more"
    share = f"{percent(abs(result.gain_pct))} {more}" if result.gain_pct is not None else more
    saved = saved_between(gain.low, gain.value, gain.high) if gain.value > 0 else ""
    share += f"; saves {'' if gain.low > 0 else f'{duration(gain.value)}, '}{saved}" if saved else ""
    return f"{period} would take {value} instead of {was} ({share})."


def changes_anything(result: WhatIf) -> bool:
    """Return whether any intervention applies to the recording."""
    return any(change.touched for change in result.interventions)


def interval(estimate: Estimate, of: Unit) -> str:
    """Return an interval such as `30.1 to 65.0`; empty if both ends are the same."""
    low, high = of.number(estimate.low), of.number(estimate.high)
    return "" if low == high else f"{low} to {high}"


def _fidelity(result: WhatIf) -> Iterator[str]:
    """Yield sentences on how well a valid replay matches the recording."""
    of, fidelity = unit(result), result.replay
    took = "a step" if result.steps else "all that was recorded"
    off = f" ({percent(fidelity.step_error_pct)} off)" if fidelity.step_error_pct is not None else ""
    yield (
        f"Without changes, the replay takes {of.text(result.replayed_step_ns)} for {took}; the recording took "
        f"{of.text(result.recorded_step_ns)}{off}."
    )
    yield (
        f"GPU ops start within {duration(fidelity.start_error_ns)} of their recorded start; the tolerance is "
        f"{duration(fidelity.launch_latency_ns)}."
    )


# -- Tables ---------------------------------------------------------------------------------------


def buckets(result: WhatIf) -> Table:
    """Return the buckets of the step, now and predicted."""
    of = unit(result)
    lines: list[tuple[Cell | str, ...]] = [
        (Cell(bucket.name, color=bucket.id), of.number(change.measured), *_estimate(change.predicted, of))
        for bucket, change in ((bucket_of(name), change) for name, change in result.buckets.items())
        if change.measured or change.predicted.high
    ]
    if lines and result.predicted_step_ns is not None:
        lines.append(
            (
                "step" if result.steps else "all",
                of.number(result.baseline_step_ns),
                *_estimate(result.predicted_step_ns, of),
            )
        )
    columns = (words(""), Column(f"now {of.name}"), Column("predicted"), _BETWEEN)
    title = "Where a step goes" if result.steps else "Where the time goes"
    return Table(title, columns, rows(lines), total=True)


def now_and_predicted(result: WhatIf) -> Iterator[Block]:
    """Yield the buckets of the step as a bar now and, below it on the same scale, as predicted."""
    named = [(bucket_of(field).name, change) for field, change in result.buckets.items()]
    sides = {
        "Now": {name: change.measured for name, change in named},
        "Predicted": {name: change.predicted.value for name, change in named},
    }
    longest_ns = max(sum(parts.values()) for parts in sides.values())
    for title, parts in sides.items() if longest_ns else ():
        yield Text(title, "muted")
        yield bar_of(parts, unit(result), longest_ns)


def ladder(result: WhatIf) -> Table:
    """Return the best set of interventions for each number of them."""
    of = unit(result)
    if not result.ladder:
        return Table("", ())
    lines = [("now", of.number(result.unchanged_step_ns), "", "", "")]
    for rung in result.ladder:
        if not rung.interventions:
            continue
        step = rung.predicted_step_ns
        share = bare_share(rung.gain_ns, result.unchanged_step_ns)
        lines.append((f"+ {clean(rung.added, _TEXT_LIMIT)}", *_estimate(step, of), of.number(rung.gain_ns), share))
    columns = (
        _WRAPPED,
        Column(f"{'step' if result.steps else 'all'} {of.name}"),
        _BETWEEN,
        Column("saved", id="saved", spare=True),
        Column("% saved", id="share", spare=True),
    )
    return Table("Savings, one change added at a time", columns, rows(lines))


def _assumptions(result: WhatIf) -> Table:
    """Return the assumptions, the costliest first, and last those that the trace shows."""
    of = unit(result)
    lines = [
        (
            clean(assumption.text, _TEXT_LIMIT),
            clean(assumption.intervention, _TEXT_LIMIT),
            if_wrong(assumption, of),
        )
        for assumption in sorted(
            result.assumptions, key=lambda assumption: (assumption.shown, -(assumption.cost_ns or 0))
        )
    ]
    columns = (_WRAPPED, words("for"), prose("if wrong"))
    return Table("Assumptions", columns, rows(lines))


def if_wrong(assumption: Assumption, of: Unit) -> str:
    """Return what an assumption that doesn't hold does to the step."""
    if assumption.shown:
        return "shown by the trace"
    if not assumption.cost_ns:
        return "may not be possible" if assumption.cost_ns is None else "no effect"
    return f"{of.text(abs(assumption.cost_ns))} {'more' if assumption.cost_ns > 0 else 'less'}"


def _constants(result: WhatIf) -> Table:
    """Return the hardware constants and their sources."""
    lines = (
        (clean(constant.name, _TEXT_LIMIT), _figure(constant), _ORIGINS[constant.origin])
        for constant in result.constants
    )
    origin = prose("source")
    return Table("Hardware constants", (_WRAPPED, Column(""), origin), rows(lines))


def _figure(constant: Constant) -> str:
    if constant.unit == "ns":
        return unit_for(round(constant.value)).text(round(constant.value))
    figure = f"{constant.value:,.0f}" if abs(constant.value) >= 100 else f"{constant.value:.3g}"
    return f"{figure} {clean(constant.unit, _TEXT_LIMIT)}".rstrip()


def _estimate(estimate: Estimate, of: Unit) -> tuple[str, str]:
    return of.number(estimate.value), interval(estimate, of)
