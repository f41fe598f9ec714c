"""Differences between the machines, software and ways of recording of two reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct

from overlapscope.analysis.results import Environment
from overlapscope.compare.difference import Aspect
from overlapscope.report.model import PLAIN, Report

T = TypeVar("T")

_PREDICTED = "predicted"


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
        flags[_PREDICTED] = True
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
    differing = [Difference(what, str(a), str(b)) for what, a, b in pairs if a is not None and b is not None and a != b]
    if is_plain(before) != is_plain(after):
        return (
            *differing,
            Difference("profiler", *("plain" if is_plain(side) else "recorded" for side in (before, after))),
        )
    unlike = [name for name in before.flags if name in after.flags and before.flags[name] != after.flags[name]]
    if unlike:
        sides = [_flags(side, unlike) for side in (before, after)]
        differing.append(Difference("profiler", *sides))
    return tuple(differing)


def is_plain(environment: Environment) -> bool:
    """Return whether figures are of the plain program, not of a recording (`report.of_program`)."""
    return environment.flags.get(PLAIN, False)


def is_predicted(environment: Environment) -> bool:
    """Return whether some traces were predicted, not recorded."""
    return environment.flags.get(_PREDICTED, False)


def _flags(environment: Environment, names: Iterable[str]) -> str:
    return ", ".join(f"{'with' if environment.flags[name] else 'without'} {name.replace('_', ' ')}" for name in names)


def _common(values: Iterable[T | None]) -> T | None:
    """Return the value if all that are stated agree; otherwise None."""
    stated = {value for value in values if value is not None}
    return stated.pop() if len(stated) == 1 else None
