"""The bundled recordings, each read and analysed once for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from overlapscope import analysis
from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.device import DeviceAnalysis, analyze_device
from overlapscope.prediction import program
from overlapscope.prediction.program import Program
from overlapscope.reading import kineto, load
from overlapscope.reading.samples import SAMPLES
from overlapscope.report import findings
from overlapscope.report.model import Report, build
from overlapscope.rules.finding import Finding
from overlapscope.trace.model import Trace
from tests.support.helpers import TRACES

Made = TypeVar("Made")


@cache
def trace_of(recording: Path) -> Trace:
    """As it is read, without the cache of read traces."""
    return load(recording, progress=False, cache=False)


@cache
def analysis_of(recording: Path) -> TraceAnalysis:
    return analyze_trace(trace_of(recording))


@cache
def report_of(recording: Path) -> Report:
    return build([analysis_of(recording)])


_made: dict[tuple[object, ...], Any] = {}
"""What was read of bundled recordings, and analyses, plain programs and findings of that."""
_read: set[Trace] = set()


def _once(key: tuple[object, ...], make: Callable[[], Made]) -> Made:
    if key not in _made:
        _made[key] = make()
    made: Made = _made[key]
    return made


@contextmanager
def each_read_once() -> Iterator[None]:
    """Whoever reads a bundled recording again is given what was read first, and what was found in that.

    For tests that patch nothing: what was found before the patch would be found again.
    """
    read_kineto, found = kineto.read, program._found
    on_device = findings._on_device

    def read(path: str | Path, *, limit_bytes: int, **watched: Any) -> Trace:
        where = Path(path).absolute()
        if not {TRACES, SAMPLES} & {*where.parents}:
            return read_kineto(path, limit_bytes=limit_bytes, **watched)
        key = read_kineto, where, str(path), limit_bytes
        trace = _once(key, lambda: read_kineto(path, limit_bytes=limit_bytes, progress=False))
        _read.add(trace)
        return trace

    def analyze(trace: Trace, comparable: Trace, device: int, *rest: Any, **part: Any) -> DeviceAnalysis | None:
        def make() -> DeviceAnalysis | None:
            return analyze_device(trace, comparable, device, *rest, **part)

        return _once((analyze_device, trace, device, *part.items()), make) if trace in _read else make()

    def find(done: TraceAnalysis, told_ns: int | None, *, estimate: bool) -> Program | None:
        def make() -> Program | None:
            return found(done, told_ns, estimate=estimate)

        return _once((found, done.trace, told_ns, estimate), make) if done.trace in _read else make()

    def judge(done: TraceAnalysis, device: DeviceAnalysis, *rest: Any) -> tuple[Finding, ...]:
        def make() -> tuple[Finding, ...]:
            return tuple(on_device(done, device, *rest))

        return _once((on_device, done.trace, done.devices, device, *rest), make) if done.trace in _read else make()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto, "read", read)
        patch.setattr(analysis, "analyze_device", analyze)
        patch.setattr(program, "_found", find)
        patch.setattr(findings, "_on_device", judge)
        yield
