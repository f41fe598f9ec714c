"""Differences between the machines, software and recordings of two reports, and what can still be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from overlapscope.analysis.results import Check, Environment, Trust
from overlapscope.base.words import clean, listed, plural
from overlapscope.catalog.checks import check_by_id
from overlapscope.compare.difference import Aspect, DeviceDiff, Doubt
from overlapscope.compare.noise import FEWEST
from overlapscope.report.model import PLAIN, Report, of_program
from overlapscope.report.sentences import phase_words
from overlapscope.trace.lost import FIGURES, Part, part_words

# -- Environments ------------------------------------------------------------------------------------

T = TypeVar("T")

PREDICTED = "predicted"
"""Flag of an environment some of whose traces were predicted, not recorded."""


class Difference(Struct, frozen=True):
    """An attribute that differs. An attribute that one side doesn't state is not a difference."""

    what: Aspect
    before: str
    after: str


def fingerprint(report: Report) -> Environment:
    """Return the common environment of a report's traces. Attributes that are missing or differ are None."""
    each = [trace.environment for trace in report.traces]
    flags = {name: any(trace.flags.get(name, False) for trace in each) for trace in each for name in trace.flags}
    if any(trace.predicted_by is not None for trace in report.traces):
        flags[PREDICTED] = True
    return Environment(
        gpus=tuple(sorted({name for trace in each for name in trace.gpus})),
        world_size=_common(trace.world_size for trace in each),
        torch=_common(trace.torch for trace in each),
        cuda=_common(trace.cuda for trace in each),
        driver=_common(trace.driver for trace in each),
        flags={name: flags[name] for name in sorted(flags)},
    )


def differences(before: Environment, after: Environment) -> tuple[Difference, ...]:
    """Return the attributes that both environments state and that differ."""
    pairs: list[tuple[Aspect, str | int | None, str | int | None]] = [
        ("gpu", ", ".join(before.gpus) or None, ", ".join(after.gpus) or None),
        ("torch", before.torch, after.torch),
        ("cuda", before.cuda, after.cuda),
        ("driver", before.driver, after.driver),
        ("world-size", before.world_size, after.world_size),
    ]
    unlike = [name for name in before.flags if name in after.flags and before.flags[name] != after.flags[name]]
    if is_plain(before) != is_plain(after):
        was, now = ("plain" if is_plain(side) else "recorded" for side in (before, after))
        pairs.append(("profiler", was, now))
    elif unlike:
        was, now = (
            ", ".join(f"{'with' if side.flags[name] else 'without'} {name.replace('_', ' ')}" for name in unlike)
            for side in (before, after)
        )
        pairs.append(("profiler", was, now))
    return tuple(Difference(what, str(a), str(b)) for what, a, b in pairs if a is not None and b is not None and a != b)


def is_plain(environment: Environment) -> bool:
    """Return whether figures are of the plain program, not of a recording (`report.of_program`)."""
    return environment.flags.get(PLAIN, False)


def _common(values: Iterable[T | None]) -> T | None:
    """Return the value if all that are stated agree; otherwise None."""
    stated = {value for value in values if value is not None}
    return stated.pop() if len(stated) == 1 else None


_ANY_REASON = "idle time and stalls may differ for that reason alone."
_OTHER_VERSION = "All figures: they show the effect of the other version. Kernel names may differ."
_ASPECTS: dict[Aspect, tuple[str, str]] = {
    "gpu": ("GPUs", "Causes and findings. Times and percentages differ because of the GPU alone."),
    "torch": ("versions of PyTorch", _OTHER_VERSION),
    "cuda": ("versions of CUDA", _OTHER_VERSION),
    "driver": ("drivers", "All figures: they show the effect of the other driver."),
    "world-size": ("numbers of ranks", "Copies and compute of each rank, but not communication."),
    "profiler": ("ways of recording", f"Copies and kernels. Recording more slows the host, so {_ANY_REASON}"),
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
) -> Iterator[Doubt]:
    """Yield the reasons against comparing two reports, the gravest first. `recorded` are the reports as recorded."""
    for name, report, other in (("before", before, after), ("after", after, before)):
        yield from _trust(name, report, other)
    for name, report in (("Before", before), ("After", after)):
        if PREDICTED in fingerprint(report).flags:
            holds = "The predicted effect of the changes. Only a recording can confirm it."
            yield Doubt("predicted", f"{name} was predicted by `overlapscope whatif`, not recorded.", holds)
    for name, report in (("before", before), ("after", after)):
        for note in report.notes:
            yield Doubt("files", f"{clean(note)} ({name})", "The traces that were read.")
    for difference in differences(fingerprint(before), fingerprint(after)):
        name, holds = _ASPECTS[difference.what]
        detail = f"Different {name}: {clean(difference.before, 80)} before, {clean(difference.after, 80)} after."
        yield Doubt(difference.what, detail, holds)
    yield from _plain(before, recorded)
    if unmatched:
        some = "; ".join(unmatched[:8]) + (f"; and {len(unmatched) - 8} more" if len(unmatched) > 8 else "")
        holds = f"The {plural(len(devices), 'device')} in both." if devices else "Nothing: no device is in both."
        yield Doubt("ranks", f"Not in both: {some}.", holds)
    yield from _steps(devices)
    # Steps of other phases, or of other numbers of requests, differ for that reason.
    mine, theirs = (
        listed(sorted({phase_words(device) or "steps without phase" for device in report.devices}))
        for report in (before, after)
    )
    if mine and theirs and mine != theirs:
        holds = "Figures by phase. All others are of the phase that takes most time in both, if both have one."
        yield Doubt("phases", f"Most time goes to {mine} before, to {theirs} after.", holds)


def _trust(name: str, report: Report, other: Report) -> Iterator[Doubt]:
    """Yield doubts from the trust checks of a side."""
    shared = {check.id for trace in other.traces for check in trace.trust.checks if check.status != "ok"}
    for trace in report.traces:
        where = f"{clean(trace.source, 80)} ({name})"
        if trace.trust.verdict == "unusable":
            failed = " ".join(check.detail for check in trace.trust.checks if check.status == "fail")
            yield Doubt("trust", f"{where}: {failed}", "Nothing in this trace.")
            continue
        for check in trace.trust.checks:
            detail = f"{where}, check {check.id}: {check.detail}"
            if lost := _lost_by(check) & FIGURES:
                yield Doubt("lost", detail, f"No figure: all depend on {part_words(lost)}.")
            # A warning that holds for both sides says nothing about their difference.
            elif check.status == "fail" or (check.status == "warn" and check.id not in shared):
                yield Doubt("trust", detail, check_by_id(check.id).comparable)


def _plain(before: Report, recorded: tuple[Report, Report]) -> Iterator[Doubt]:
    """Yield doubts about plain programs: a correction for the way of recording, or a missing plain step."""
    if is_plain(fingerprint(before)):
        for difference in differences(*map(fingerprint, recorded)):
            if difference.what == "profiler":
                detail = f"Different ways of recording: {difference.before} before, {difference.after} after."
                holds = "All figures, corrected for the profiler, but not causes that one side did not record."
                yield Doubt("profiler", detail, holds)
        return
    plain = [is_plain(fingerprint(of_program(report))) for report in recorded]
    if any(plain):
        which = "before" if plain[0] else "after"
        detail = f"Only the trace {which} has a step time without the profiler, so recorded figures are compared."
        yield Doubt("plain", detail, f"Copies and kernels. Recording slows the host, so {_ANY_REASON}")


def _steps(devices: Sequence[DeviceDiff]) -> Iterator[Doubt]:
    if any(device.basis == "window" for device in devices):
        detail = (
            "One of the two has no steps to compare, so all that was recorded after the lead-in is compared. "
            "That may be different amounts of work."
        )
        holds = "Percentages, causes and findings, if both do the same amount of work. Noise is unknown."
        yield Doubt("no-steps", detail, holds)
    counts = {(device.steps_before, device.steps_after) for device in devices if device.basis == "step"}
    unlike = sorted((mine, theirs) for mine, theirs in counts if mine != theirs)
    if unlike:
        detail = f"{plural(unlike[0][0], 'step')} before, {unlike[0][1]} after."
        yield Doubt("steps", detail, "All figures, as means per step.")
    few = min((min(pair) for pair in counts), default=FEWEST)
    if few < FEWEST:
        detail = f"Only {plural(few, 'step')} can be compared; {FEWEST} are needed to measure how much steps vary."
        extremes = (
            "A change counts as more than noise only if every step of one side differs from every step of the other."
        )
        yield Doubt("few-steps", detail, f"Means per step. {extremes if few > 1 else 'Noise is unknown.'}")
