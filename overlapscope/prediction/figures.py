"""Buckets and overlap of a step, as recorded and as predicted."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from overlapscope.analysis.results import Buckets, Overlap
from overlapscope.analysis.timeline import build, lengths, measured
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.result import Estimate, Figure, Percentage
from overlapscope.prediction.steps import StepTimes
from overlapscope.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one timeline."""

    buckets: Buckets
    """Of the step of median length; they add up to what a step takes."""
    overlap: Overlap
    """Of all steps whose end is known, together: a single one may hold no copy where the host runs ahead."""


def figures(trace: Trace, device: int, steps: StepTimes, step_ns: int, real_ns: int) -> Figures:
    """The figures of a device's steps, of which each takes `step_ns` when many follow each other, and stands for one of
    `real_ns` (`base.Base.real_ns`)."""
    known = len(steps.known)
    middle = int(np.argsort(steps.known, kind="stable")[(known - 1) // 2])
    timeline = build(trace, device)
    starts = np.append(steps.start_ns[middle], steps.start_ns[0])
    ends = np.append(steps.end_ns[middle], steps.end_ns[known - 1])
    ns = {name: values.tolist() for name, values in lengths(timeline, starts, ends).items()}
    buckets, _, _ = measured({name: values[0] for name, values in ns.items()})
    _, _, overlap = measured({name: values[1] for name, values in ns.items()})
    # What a step takes longer than its own window is time in which a copy engine works for it.
    beyond = step_ns - int(ends[0] - starts[0])
    buckets = msgspec.structs.replace(buckets, exposed_copy_ns=buckets.exposed_copy_ns + beyond)
    return Figures(Buckets(**fitted(msgspec.structs.asdict(buckets), "idle_ns", real_ns)), overlap)


K = TypeVar("K", bound=Hashable)


def fitted(parts: Mapping[K, int], spare: K, whole: int) -> dict[K, int]:
    """Lengths that add up to `whole`: what is lacking goes to the spare one, what is too much comes from it, and where
    that is not enough from all others in proportion."""
    result = dict(parts)
    result[spare] = max(0, result[spare] + whole - sum(result.values()))
    total, running, given = sum(result.values()), 0, 0
    if total > whole:
        for name, ns in result.items():
            running += ns
            # The running sum is rounded, so that no nanosecond is lost or made.
            result[name] = running * whole // total - given
            given += result[name]
    return result


def compared_buckets(before: Figures, after: Sequence[Figures]) -> dict[str, Figure]:
    """Each bucket, measured and predicted; `after` by stance."""
    return {
        name: Figure(
            measured=getattr(before.buckets, name), predicted=_estimate([getattr(one.buckets, name) for one in after])
        )
        for name in Buckets.__struct_fields__
    }


def _estimate(by_stance: list[int]) -> Estimate:
    return Estimate(value=by_stance[Stance.EXPECTED], low=min(by_stance), high=max(by_stance))


def compared_percentage(name: str, before: Figures, after: Sequence[Figures]) -> Percentage:
    """A percentage of the overlap, likewise."""
    values = [getattr(one.overlap, name) for one in after]
    known = [value for value in values if value is not None]
    return Percentage(
        measured=getattr(before.overlap, name),
        predicted=values[Stance.EXPECTED],
        low=min(known, default=None),
        high=max(known, default=None),
    )
