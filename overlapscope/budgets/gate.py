"""The gate before every verdict: reasons why recordings can't be judged, by themselves or by a baseline or contract.

A recording must be complete, and of the same program; all ranks and devices must be there, each rank once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from msgspec import UNSET, Struct

from overlapscope.analysis.jobs import mixture
from overlapscope.analysis.results import TraceResult
from overlapscope.base.words import capital, clean, listed, percent, plural
from overlapscope.catalog.checks import check_by_id
from overlapscope.compare.doubts import fingerprint
from overlapscope.errors import UsageError
from overlapscope.report.model import Report
from overlapscope.trace.lost import FIGURES, Part, part_words

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
_KERNELS = 24
"""Maximum number of kernels that identify a program."""
_NAME = 200
"""Maximum length of a kernel's name."""
_DIGITS = 4
"""Number of decimals of percentages."""
_LISTED = 80
"""Maximum number of absent ranks to list; a job may have thousands."""
_NOTED = 8
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
    kernels: dict[str, float] = {}
    """The most frequently launched kernels, with their percentages of these launches; empty if unknown."""


# -- Recordings by themselves -------------------------------------------------------------------------


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
        for rank in range(min(size, len(present) + _LISTED))
        if rank not in present
    }
    if present or len(expected) > 1:
        for rank in sorted(set(expected) - present):
            absent.setdefault(rank, f"its trace was not given, and {what} has it")
    return absent


def absence_notes(absent: Mapping[int, str]) -> Iterator[str]:
    """Yield a sentence about each of the first absent ranks, and a sentence about the others."""
    yield from (f"rank {rank}: {reason}." for rank, reason in islice(absent.items(), _NOTED))
    if len(absent) > _NOTED:
        more = len(absent) - _NOTED
        # More ranks than are listed may be absent.
        least = "At least " if len(absent) >= _LISTED else ""
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


def incomplete(trace: TraceResult, rests_on: Collection[Part] = FIGURES) -> Iterator[Obstacle]:
    """Yield an obstacle if some of these parts of a recording may be lost."""
    if lost := doubt(trace, rests_on):
        yield Obstacle("complete recording", "complete", f"{clean(trace.source, 200)} may lack something: {lost}.")


# -- Recordings beside a baseline or contract ---------------------------------------------------------


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
                counts[clean(group.kernel, _NAME)] += group.count
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_KERNELS]
    total = sum(count for _, count in most)
    kernels = {name: round(100 * count / total, _DIGITS) for name, count in most if count}
    return ProgramIdentity(job=jobs.pop() if len(jobs) == 1 else None, kernels=kernels)
