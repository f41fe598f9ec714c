"""Reasons why some figures of two reports can't be compared, and what can still be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overlapscope.analysis.results import Check, Trust
from overlapscope.base.words import clean, listed, plural
from overlapscope.catalog.checks import check_by_id
from overlapscope.compare.difference import Aspect, DeviceDiff, Doubt
from overlapscope.compare.environment import differences, fingerprint, is_plain, is_predicted
from overlapscope.compare.noise import FEWEST
from overlapscope.report.model import Report, of_program
from overlapscope.report.step_words import phase_words
from overlapscope.trace.lost import FIGURES, Part, part_words

_OTHER_VERSION = "All figures: they show the effect of the other version. Kernel names may differ."
_ASPECTS: dict[Aspect, tuple[str, str]] = {
    "gpu": ("GPUs", "Causes and findings. Times and percentages differ because of the GPU alone."),
    "torch": ("versions of PyTorch", _OTHER_VERSION),
    "cuda": ("versions of CUDA", _OTHER_VERSION),
    "driver": ("drivers", "All figures: they show the effect of the other driver."),
    "world-size": ("numbers of ranks", "Copies and compute of each rank, but not communication."),
    "profiler": (
        "ways of recording",
        "Copies and kernels. Recording more slows the host, so idle time and stalls may differ for that reason alone.",
    ),
}
"""Name of each attribute that may differ, and the figures that can still be compared."""


def lost_in(trust: Trust) -> frozenset[Part]:
    """Return the parts of a recording that may be incomplete.

    A recording without launches is not incomplete, since its window can be compared.
    """
    return frozenset().union(*map(_lost_by, trust.checks))


def _lost_by(check: Check) -> frozenset[Part]:
    return frozenset() if (check.id, check.status) == ("launches", "fail") else check.lost_parts


def find_doubts(
    before: Report,
    after: Report,
    devices: Sequence[DeviceDiff],
    unmatched: Sequence[str],
    *,
    recorded: tuple[Report, Report],
) -> tuple[Doubt, ...]:
    """Return the reasons against comparing two reports, the gravest first. `recorded` are the reports as recorded."""
    return (
        *_trust(before, after),
        *_predicted(before, after),
        *_notes(before, after),
        *_environment(before, after),
        *_plain(before, recorded),
        *_ranks(devices, unmatched),
        *_steps(devices),
        *_phases(before, after),
    )


def _trust(before: Report, after: Report) -> Iterator[Doubt]:
    for name, report, other in (("before", before, after), ("after", after, before)):
        shared = {check.id for trace in other.traces for check in trace.trust.checks if check.status != "ok"}
        for trace in report.traces:
            where = clean(trace.source, 80)
            if trace.trust.verdict == "unusable":
                failed = " ".join(check.detail for check in trace.trust.checks if check.status == "fail")
                yield Doubt(id="trust", detail=f"{where} ({name}): {failed}", holds="Nothing in this trace.")
                continue
            for check in trace.trust.checks:
                if lost := _lost_by(check) & FIGURES:
                    yield Doubt(
                        id="lost",
                        detail=f"{where} ({name}), check {check.id}: {check.detail}",
                        holds=f"No figure: all depend on {part_words(lost)}.",
                    )
                    continue
                # A warning that holds for both sides says nothing about their difference.
                if check.status == "fail" or (check.status == "warn" and check.id not in shared):
                    yield Doubt(
                        id="trust",
                        detail=f"{where} ({name}), check {check.id}: {check.detail}",
                        holds=check_by_id(check.id).comparable,
                    )


def _predicted(before: Report, after: Report) -> Iterator[Doubt]:
    for name, report in (("Before", before), ("After", after)):
        if is_predicted(fingerprint(report)):
            yield Doubt(
                id="predicted",
                detail=f"{name} was predicted by `overlapscope whatif`, not recorded.",
                holds="The predicted effect of the changes. Only a recording can confirm it.",
            )


def _notes(before: Report, after: Report) -> Iterator[Doubt]:
    for name, report in (("before", before), ("after", after)):
        for note in report.notes:
            yield Doubt(id="files", detail=f"{clean(note)} ({name})", holds="The traces that were read.")


def _environment(before: Report, after: Report) -> Iterator[Doubt]:
    for difference in differences(fingerprint(before), fingerprint(after)):
        name, holds = _ASPECTS[difference.what]
        detail = f"Different {name}: {clean(difference.before, 80)} before, {clean(difference.after, 80)} after."
        yield Doubt(id=difference.what, detail=detail, holds=holds)


def _plain(before: Report, recorded: tuple[Report, Report]) -> Iterator[Doubt]:
    """Yield doubts about plain programs: a correction for the way of recording, or a missing plain step."""
    if is_plain(fingerprint(before)):
        for difference in differences(*map(fingerprint, recorded)):
            if difference.what == "profiler":
                detail = f"Different ways of recording: {difference.before} before, {difference.after} after."
                yield Doubt(
                    id="profiler",
                    detail=detail,
                    holds="Corrected figures of the host, but not causes that one side did not record.",
                )
        return
    plain = [is_plain(fingerprint(of_program(report))) for report in recorded]
    if any(plain):
        which = "before" if plain[0] else "after"
        yield Doubt(
            id="plain",
            detail=f"Only the trace {which} has a step time without the profiler, so recorded figures are compared.",
            holds=(
                "Copies and kernels. Recording slows the host, so idle time and stalls may differ for that "
                "reason alone."
            ),
        )


def _ranks(devices: Sequence[DeviceDiff], unmatched: Sequence[str]) -> Iterator[Doubt]:
    if unmatched:
        listed = "; ".join(unmatched[:8]) + (f"; and {len(unmatched) - 8} more" if len(unmatched) > 8 else "")
        holds = f"The {plural(len(devices), 'device')} in both." if devices else "Nothing: no device is in both."
        yield Doubt(id="ranks", detail=f"Not in both: {listed}.", holds=holds)


def _phases(before: Report, after: Report) -> Iterator[Doubt]:
    """Yield a doubt if an average step is of other phases, or of other numbers of requests."""
    mine, theirs = (
        listed(sorted({phase_words(device) or "steps without phase" for device in report.devices}))
        for report in (before, after)
    )
    if mine and theirs and mine != theirs:
        yield Doubt(
            id="phases",
            detail=f"Most time goes to {mine} before, to {theirs} after.",
            holds="Figures by phase in the two reports. An average step differs because it is of other work.",
        )


def _steps(devices: Sequence[DeviceDiff]) -> Iterator[Doubt]:
    if any(device.basis == "window" for device in devices):
        yield Doubt(
            id="no-steps",
            detail="One of the two has no steps to compare, so all that was recorded after the lead-in is compared. "
            "That may be different amounts of work.",
            holds="Percentages, causes and findings, if both do the same amount of work. Noise is unknown.",
        )
    counts = {(device.steps_before, device.steps_after) for device in devices if device.basis == "step"}
    unlike = sorted((mine, theirs) for mine, theirs in counts if mine != theirs)
    if unlike:
        detail = f"{plural(unlike[0][0], 'step')} before, {unlike[0][1]} after."
        yield Doubt(id="steps", detail=detail, holds="All figures, as means per step.")
    few = min((min(pair) for pair in counts), default=FEWEST)
    if few < FEWEST:
        yield Doubt(
            id="few-steps",
            detail=f"Only {plural(few, 'step')} can be compared; {FEWEST} are needed to measure how much steps vary.",
            holds=(
                "Means. A change counts as more than noise only if every step of one side differs from every "
                "step of the other."
            )
            if few > 1
            else "Means. Noise is unknown.",
        )
