"""Reasons why two reports, or figures of them, can't be compared, and why recordings can't be judged.

Reports may differ in machine, software and recording. A doubt states what differs, and what can still be compared.

A gate stands before every verdict: a recording must be complete, and of the same program as a baseline or contract; all
ranks and devices must be there, each rank once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Final, TypeVar

from msgspec import UNSET, Meta, Struct

from overlapscope.analysis.jobs import mixture
from overlapscope.analysis.results import Check, Environment, TraceResult, Trust
from overlapscope.base.words import capital, clean, listed, percent, plural
from overlapscope.catalog.checks import check_by_id
from overlapscope.compare.difference import Aspect, DeviceDiff, Doubt
from overlapscope.compare.noise import MIN_STEPS_FOR_BOOTSTRAP
from overlapscope.errors import UsageError
from overlapscope.report.model import PLAIN, Report, of_program
from overlapscope.report.sentences import phase_words
from overlapscope.trace.lost import PARTS_FOR_FIGURES, PARTS_FOR_HOST, Part, part_words

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
    phases_before, phases_after = (
        listed(sorted({phase_words(device) or "steps without phase" for device in report.devices}))
        for report in (before, after)
    )
    if phases_before and phases_after and phases_before != phases_after:
        holds = "Figures by phase. All others are of the phase that takes most time in both, if both have one."
        yield Doubt("phases", f"Most time goes to {phases_before} before, to {phases_after} after.", holds)


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
            if lost := _lost_by(check) & PARTS_FOR_FIGURES:
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
    unlike = sorted((steps_before, steps_after) for steps_before, steps_after in counts if steps_before != steps_after)
    if unlike:
        detail = f"{plural(unlike[0][0], 'step')} before, {unlike[0][1]} after."
        yield Doubt("steps", detail, "All figures, as means per step.")
    few = min((min(pair) for pair in counts), default=MIN_STEPS_FOR_BOOTSTRAP)
    if few < MIN_STEPS_FOR_BOOTSTRAP:
        needed = f"{MIN_STEPS_FOR_BOOTSTRAP} are needed to measure how much steps vary"
        detail = f"Only {plural(few, 'step')} can be compared; {needed}."
        extremes = (
            "A change counts as more than noise only if every step of one side differs from every step of the other."
        )
        yield Doubt("few-steps", detail, f"Means per step. {extremes if few > 1 else 'Noise is unknown.'}")


# -- The gate before every verdict: recordings by themselves ---------------------------------------------

COMMON_PCT: Final = 50.0
"""Minimum percentage of common kernel launches for two recordings to be of the same program, if their scripts' names
are unknown."""
COMMON_PCT_SAME_SCRIPT: Final = 20.0
"""The same for recordings of scripts with the same name."""
COMMON_PCT_OTHER_SCRIPT: Final = 80.0
"""The same for recordings of scripts with different names."""
_FAMILIES_PCT: Final = 80.0
"""Minimum percentage of launches of common families of kernels that is enough, too."""
_MATMUL = re.compile(r"gemm|gemv|cutlass|xmma|splitk|cublas|nvjet|wgmma|Cijk|conv|wgrad|dgrad|winograd", re.IGNORECASE)
"""Kernels of matrix products and convolutions, whose libraries choose another one for another GPU or size."""
_NUMBER = re.compile(r"\d+")
_MAX_KERNELS = 24
"""Maximum number of kernels that identify a program."""
_MAX_NAME_LENGTH = 200
"""Maximum length of a kernel's name."""
_PERCENTAGE_DECIMALS = 4
"""Number of decimals of percentages."""
_MAX_LISTED_RANKS = 80
"""Maximum number of absent ranks to list; a job may have thousands."""
_MAX_WARNED_RANKS = 8
"""Maximum number of absent ranks that get a warning each."""


class Obstacle(Struct, frozen=True):
    """A reason why recordings can't be judged."""

    name: str
    """Demand that is not met, such as `same program`."""
    metric: str
    sentence: str


class ProgramIdentity(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Evidence that tells a program from others."""

    job: str | None = None
    """Name of the script or job, if the traces state it."""
    kernels: dict[str, Annotated[float, Meta(ge=0, le=100)]] = {}
    """The most frequently launched kernels, with their percentages of these launches; empty if unknown."""


def doubt(trace: TraceResult, rests_on: Collection[Part]) -> str | None:
    """Return the reason why figures computed from these parts of a recording are unreliable; None if they are not."""
    for check in sorted(
        trace.trust.checks, key=lambda check: (not check_by_id(check.id).grave, check.status != "fail")
    ):
        lost = check.lost_parts.intersection(rests_on)
        if lost:
            problem = f"some {part_words(lost)} are lost or wrong, according to the trust check {check.id}"
            if check.status == "fail":
                problem = f"the trust check {check.id} failed"
            problem = check_by_id(check.id).grave or problem
            return f"{problem} ({clean(check.detail, 300).rstrip('.')})"
    return None


def refuse_predicted(report: Report) -> None:
    """Raise UsageError if a trace was predicted instead of recorded."""
    for trace in report.traces:
        if trace.predicted_by is not None:
            changes = ", ".join(trace.predicted_by) or "with nothing changed"
            raise UsageError(
                f"{trace.source}: was predicted by `overlapscope whatif` ({clean(changes, 120)}), and is not a "
                "recording; name a recording of the changed program."
            )


def absent_ranks(report: Report, expected: Collection[int] = (), what: str = "") -> dict[int, str]:
    """Return the ranks of the job whose traces were not given, each with the reason it was expected.

    The traces state how many ranks the job had; `expected` are those of `what`, such as `the baseline`.
    """
    present = {trace.rank for trace in report.traces if trace.rank is not None}
    size = (fingerprint(report).world_size or 0) if present else 0
    absent = {
        rank: f"its trace was not given, and the job had {size} ranks"
        for rank in range(min(size, len(present) + _MAX_LISTED_RANKS))
        if rank not in present
    }
    if present or len(expected) > 1:
        for rank in sorted(set(expected) - present):
            absent.setdefault(rank, f"its trace was not given, and {what} has it")
    return absent


def absence_notes(absent: Mapping[int, str]) -> Iterator[str]:
    """Yield a sentence about each of the first absent ranks, and a sentence about the others."""
    yield from (f"rank {rank}: {reason}." for rank, reason in islice(absent.items(), _MAX_WARNED_RANKS))
    if len(absent) > _MAX_WARNED_RANKS:
        more = len(absent) - _MAX_WARNED_RANKS
        # More ranks than are listed may be absent.
        least = "At least " if len(absent) >= _MAX_LISTED_RANKS else ""
        yield f"{least}{more} more {'rank was' if more == 1 else 'ranks were'} not given."


def mixed(report: Report) -> Iterator[Obstacle]:
    """Yield an obstacle if traces can't be those of one job."""
    reasons = [
        *mixture(report.traces),
        *(f"{named} are all of rank {rank}." for rank, named in _alike(report, several=True)),
    ]
    if reasons:
        sentence = f"{' '.join(reasons)} Name the traces of one job, or check each job separately."
        yield Obstacle("traces of one job", "job", sentence)


def mixed_notes(report: Report) -> Iterator[str]:
    """Yield a warning if traces may be of different jobs."""
    for rank, named in _alike(report, several=False):
        which = "name no rank" if rank is None else f"are all of rank {rank}"
        yield f"{named} {which}, and are judged as one job; check traces of different jobs separately."


def _alike(report: Report, *, several: bool) -> Iterator[tuple[int | None, str]]:
    """Yield each rank that has more than one trace, with their names. `several`: whether its job has several ranks."""
    sources: dict[int | None, list[str]] = {}
    for trace in report.traces:
        if (trace.rank is not None and trace.environment.world_size != 1) == several:
            sources.setdefault(trace.rank, []).append(clean(trace.source, 200))
    yield from ((rank, listed(named, 2)) for rank, named in sources.items() if len(named) > 1)


def incomplete(trace: TraceResult) -> Iterator[Obstacle]:
    """Yield an obstacle if a part of a recording may be lost that figures need."""
    if lost := doubt(trace, PARTS_FOR_FIGURES if trace.host is None else PARTS_FOR_HOST):
        yield Obstacle("complete recording", "complete", f"{clean(trace.source, 200)} may lack something: {lost}.")


# -- The gate: recordings beside a baseline or contract ----------------------------------------------


def absent_devices(trace: TraceResult, devices: int, what: str) -> Iterator[Obstacle]:
    """Yield an obstacle if fewer devices worked in a trace than `what` (such as `the baseline`) has."""
    if len(trace.devices) < devices:
        sentence = f"{clean(trace.source, 200)} shows {plural(len(trace.devices), 'device')}, and {what} has {devices}."
        yield Obstacle("all devices", "devices", sentence)


def other_program(program: ProgramIdentity, here: ProgramIdentity, what: str) -> Iterator[Obstacle]:
    """Yield an obstacle if `what` (such as `the baseline`) is of another program than recordings.

    Programs keep most of their kernels when they change. Scripts of different names need more kernels in common.
    Another GPU, size or version of a library takes other kernels of the same families.
    """
    named = None not in (here.job, program.job)
    scripts = f"job {clean(program.job or '', 80)}, here {clean(here.job or '', 80)}"
    evidence = [scripts] if named and here.job != program.job else []
    if here.kernels and program.kernels:
        least_pct = COMMON_PCT_OTHER_SCRIPT if evidence else COMMON_PCT_SAME_SCRIPT if named else COMMON_PCT
        common_pct = _common_pct(program.kernels, here.kernels)
        of_families = _common_pct(_families(program.kernels), _families(here.kernels))
        if common_pct >= least_pct or of_families >= _FAMILIES_PCT:
            return
        evidence.append(f"{percent(common_pct)} of kernel launches in common")
    if evidence:
        yield Obstacle("same program", "program", f"{capital(what)} is of another program: {'; '.join(evidence)}.")


def _common_pct(some: Mapping[str, float], others: Mapping[str, float]) -> float:
    return sum(min(pct, others.get(name, 0.0)) for name, pct in some.items())


def _families(kernels: Mapping[str, float]) -> Mapping[str, float]:
    """Return the shares of families: kernels whose names differ in numbers only, and those of `_MATMUL`."""
    families: dict[str, float] = {}
    for name, pct in kernels.items():
        family = "matmul" if _MATMUL.search(name) else _NUMBER.sub("#", name)
        families[family] = families.get(family, 0.0) + pct
    return families


def program_of(traces: Iterable[TraceResult]) -> ProgramIdentity:
    """Return the evidence that tells the program of traces from others."""
    jobs: set[str] = set()
    counts: Counter[str] = Counter()
    for trace in traces:
        if trace.origin is not UNSET and trace.origin.job:
            jobs.add(trace.origin.job)
        for device in trace.devices:
            for group in device.kernels:
                counts[clean(group.kernel, _MAX_NAME_LENGTH)] += group.count
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_MAX_KERNELS]
    total = sum(count for _, count in most)
    kernels = {name: round(100 * count / total, _PERCENTAGE_DECIMALS) for name, count in most if count}
    return ProgramIdentity(job=jobs.pop() if len(jobs) == 1 else None, kernels=kernels)
