"""Causes of exposed communication in judged figures, in baselines, and in the reasons why a check fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlapscope.budgets import baseline
from overlapscope.budgets.places import figures, of_range, spent
from overlapscope.catalog.measures import CAUSES_OF, METRICS
from overlapscope.commands import main
from overlapscope.compare.noise import GPU_SHARE, LINK_SHARE, Pair, compare, noise_floor
from tests.support.helpers import TRACES
from tests.support.recordings import report_of
from tests.support.stepped_traces import write_steps

RANK = TRACES / "laboratory" / "ddp_training" / "no_overlap.traces" / "rank0.trace.json.gz"
METRIC = "exposed_comm_time"


def test_the_causes_of_judged_figures_add_up() -> None:
    values = {figure.metric.metric: figure.value for figure in figures(report_of(RANK))}
    for metric, causes in CAUSES_OF.items():
        parts = [values[part.metric] for part in causes.values() if part.metric in values]
        assert not parts or sum(parts) == pytest.approx(values[metric])
    assert values[f"{METRIC}/same-stream"] > 0


def write_job(path: Path, comm_us: float, *, compute_us: float = 600) -> str:
    """Write eight steps with a collective each, after the compute on its stream."""
    write_steps(path, copy_us=comm_us, compute_us=compute_us)
    content = json.loads(path.read_text())
    for event in content["traceEvents"]:
        if event.get("cat") == "gpu_memcpy":
            event |= {"cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"}
    path.write_text(json.dumps(content))
    return str(path)


def test_a_failed_check_says_by_how_much_each_cause_grew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = write_job(tmp_path / "slow.json", 200)
    kept = baseline.of(report_of(Path(write_job(tmp_path / "fast.json", 100))))
    causes = [line for line in kept.series if line.length.startswith("exposed-comm:")]
    (whole,) = (line for line in kept.series if line.length == "exposed_comm")
    each = zip(*(line.values for line in causes), strict=True)
    assert [sum(value or 0 for value in values) for values in each] == [*whole.values]

    path = tmp_path / "baseline.json"
    path.write_bytes(baseline.to_json(kept))
    assert main(["check", slow, "-v", "--budget", f"{METRIC} increase <= 10%", "--baseline", str(path)]) == 1
    reasons = [line for line in capsys.readouterr().out.splitlines() if line.startswith("- exposed comm")]
    assert reasons == ["- exposed comm, same-stream: 200 us a step on average, 100 us more than in the"]


@pytest.mark.parametrize("causes", [{"unknown": 1000}, {"host-sync": 600, "same-stream": 400}])
def test_communication_may_vary_as_the_link_does_whatever_its_cause(causes: dict[str, int]) -> None:
    (device,) = report_of(RANK).devices
    step = device.steps[0]
    figures = replace(step, buckets=replace(step.buckets, exposed_comm_ns=1000), exposed_comm_by_cause=causes)
    known = spent(of_range("step", [figures]), None)
    floor = noise_floor(METRICS[METRIC], (known, known))
    assert floor == pytest.approx(GPU_SHARE * known["span"] + LINK_SHARE * 1000)
    # `diff` and `check` have the same floor.
    spans = [figures.span_ns]
    compared = compare([figures], [figures], Pair(spans, spans))
    assert compared.bucket("exposed comm").noise_floor == pytest.approx(floor)
