"""Sentences of the checks of a trace on a single op, wait or launch."""

from __future__ import annotations

from pathlib import Path

import overlapscope as ov
from tests.support.kineto_files import call, kernel, write


def test_a_single_op_wait_or_launch_is_named_as_one(tmp_path: Path) -> None:
    events = [
        call(100, 5, 1),
        kernel(20, 10, correlation=1),
        call(110, 5, 2, name="cudaStreamWaitEvent"),
        call(120, 5, 3),
        call(130, 5, 4),
        kernel(140, 10, correlation=4),
    ]
    (trace,) = ov.analyze(ov.load(write(tmp_path / "t.json", events), progress=False, cache=False)).traces
    checks = {check.id: check.detail for check in trace.trust.checks}
    assert checks["clock-skew"].startswith("1 GPU op begins before its launch, by up to 80.0 us: the clocks disagree.")
    assert checks["dropped-ops"].startswith("1 of 3 recorded launches has no GPU op: the profiler dropped it (")
    assert checks["sync-events"].startswith("1 event wait, but no sync events: which stream waited for which was ")
