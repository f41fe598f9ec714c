"""Programs of `scenarios/jobs` on H100s (`benchmarks.several_gpus`): what is said of them, and sums over the raw files.

The archive has a pipeline, a straggler, compute and a collective that are launched late, two collectives on one
communicator, gradients in a single bucket, FSDP2 without prefetching, a recording four times as slow as its program,
and copies between two GPUs of one process.
"""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope import load
from overlapscope.plugins.jobs.joint.predict import JobChanges, predict_job
from overlapscope.plugins.jobs.joint.summary import summarize
from overlapscope.ranks.join import report_on
from overlapscope.ranks.reduced import reduce
from overlapscope.ranks.result import RanksReport
from overlapscope.ranks.verdict import judge
from overlapscope.trace.model import Kind

ARCHIVE = Path(__file__).parents[3] / "jobs.tar.xz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "jobs"


def report(folder: Path) -> RanksReport:
    return report_on(rank for path in sorted(folder.glob("rank*.json")) for rank in reduce(load(str(path))))


# -- The raw files, in nanoseconds -----------------------------------------------------------------


def raw(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_bytes(), parse_float=str)["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def ns(microseconds: str | int) -> int:
    whole, _, fraction = str(microseconds).partition(".")
    return 1000 * int(whole) + int(f"{fraction:0<3}"[:3])


def span(event: dict[str, Any]) -> tuple[int, int]:
    return ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])


def launched_in(events: list[dict[str, Any]], step: str) -> list[dict[str, Any]]:
    """Return the kernels that the host launched in a step."""
    (begin, end), *_ = [span(event) for event in events if event["name"] == step and event["cat"] == "user_annotation"]
    calls = {
        event["args"]["correlation"]
        for event in events
        if event["cat"] in {"cuda_runtime", "cuda_driver"} and begin <= ns(event["ts"]) < end
    }
    return [event for event in events if event["cat"] == "kernel" and event["args"]["correlation"] in calls]


def apart(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the union of spans, in order."""
    begin, until = None, 0
    for start, end in sorted(spans):
        if begin is None or start > until:
            if begin is not None:
                yield begin, until
            begin, until = start, end
        until = max(until, end)
    if begin is not None:
        yield begin, until


def without(these: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> int:
    """Return the length of the first set outside the second one."""
    both = list(apart(others))
    return sum(
        end - start - sum(max(0, min(end, until) - max(start, since)) for since, until in both)
        for start, end in apart(these)
    )


# -- Pipelines -------------------------------------------------------------------------------------


def test_a_pipeline_has_its_schedule_and_its_bubble_beside_the_theoretical_one(folder: Path) -> None:
    result = report(folder / "two-1f1b")
    (pipeline,) = result.parts["jobs"].pipelines
    assert (pipeline.ranks, pipeline.schedule, pipeline.microbatches, pipeline.chunks) == ((0, 1), "1f1b", 8, 1)
    assert pipeline.theoretical_bubble_pct == pytest.approx(100 / 9)
    assert [step.name for step in pipeline.steps] == ["ProfilerStep#22", "ProfilerStep#23"]
    assert result.clocks.status == "shared"
    assert judge(result).text.startswith(
        "The stages of the pipeline of ranks 0 and 1 compute nothing for 16.7% of the time (1F1B with 8 microbatches: "
        "11.1% in theory)."
    )


def test_the_stage_that_idles_on_its_own_account_is_named(folder: Path) -> None:
    result = report(folder / "two-1f1b")
    assert "holds it up" not in judge(result).text
    (pipeline,) = result.parts["jobs"].pipelines
    steps = []
    for step in pipeline.steps:
        first, second = step.stages
        warm_up = replace(second.warm_up, idle_ns=second.warm_up.idle_ns + 42_000_000)
        steps.append(replace(step, stages=(first, replace(second, warm_up=warm_up))))
    part = replace(result.parts["jobs"], pipelines=(replace(pipeline, steps=tuple(steps)),))
    late = replace(result, parts={"jobs": part})
    assert (
        "Stage 1 (rank 1) holds it up: it neither computes nor sends nor receives for 43.74 ms a step, the median of "
        "the others 1.64 ms."
    ) in judge(late).text


def test_stages_compute_as_long_as_the_kernels_of_their_steps_run(folder: Path) -> None:
    (pipeline,) = report(folder / "two-1f1b").parts["jobs"].pipelines
    for stage in range(2):
        events = raw(folder / "two-1f1b" / f"rank{stage}.trace.json")
        for step in pipeline.steps:
            kernels = [each for each in launched_in(events, step.name) if "nccl" not in each["name"]]
            assert step.stages[stage].compute_ns == without(map(span, kernels), ())


def test_every_send_and_receive_of_the_steps_is_paired(folder: Path) -> None:
    result = report(folder / "two-1f1b")
    (pipeline,) = result.parts["jobs"].pipelines
    sent: Counter[str] = Counter()
    for rank in range(2):
        events = raw(folder / "two-1f1b" / f"rank{rank}.trace.json")
        for step in pipeline.steps:
            sent[step.name] += sum("SendRecv" in kernel["name"] for kernel in launched_in(events, step.name))
    assert set(sent.values()) == {18}
    assert result.matching.paired >= sum(sent.values())
    assert not any("judged" in note for note in result.notes)


# -- Causes ----------------------------------------------------------------------------------------


def shares(result: RanksReport) -> dict[str, float]:
    return {
        cause: ns / result.communication.time.exposed_ns
        for cause, ns in result.communication.exposed_by_cause.items()
        if ns
    }


def test_a_sleeping_rank_is_named_and_is_half_of_the_cause(folder: Path) -> None:
    result = report(folder / "two-straggler")
    assert result.straggler is not None and result.straggler.rank == 1
    found = shares(result)
    assert set(found) == {"straggler", "no-compute"}
    assert found["straggler"] == pytest.approx(0.5, abs=0.01)


def test_waits_for_the_sleeping_rank_are_the_differences_of_starts_in_the_raw_files(folder: Path) -> None:
    result = report(folder / "two-straggler")
    starts = [
        [span(kernel)[0] for step in ("ProfilerStep#22", "ProfilerStep#23") for kernel in launched_in(events, step)
         if "nccl" in kernel["name"]]
        for rank in range(2)
        for events in [raw(folder / "two-straggler" / f"rank{rank}.trace.json")]
    ]  # fmt: skip
    assert len(starts[0]) == 2
    waited = sum(late - early for early, late in zip(*starts, strict=True))
    first, second = (row.waited_ns for row in result.ranks)
    error = result.clocks.arrival_error_ns
    assert first is not None and second == 0 and error is not None
    assert abs(first - waited) <= 2 * error


def test_the_step_without_the_sleep_is_predicted_as_it_was_timed_without_the_profiler(folder: Path) -> None:
    """The program without the sleep took 3.03 ms, and the one with it 4.70 ms."""
    summaries = [summarize(load(str(path)), (), None) for path in sorted((folder / "two-straggler").glob("rank*"))]
    result = predict_job(summaries, JobChanges(no_straggler=True))
    assert result.plain and result.replayed_step_ns is not None and result.predicted_step_ns is not None
    # Steps that the recorder timed varied by some percent.
    assert result.replayed_step_ns == pytest.approx(4_700_000, rel=0.04)
    assert result.predicted_step_ns.value == pytest.approx(3_030_000, rel=0.04)
    assert result.predicted_step_ns.low <= 3_030_000 <= result.predicted_step_ns.high


@pytest.mark.parametrize(
    ("name", "changes", "fixed_ns"),
    [
        # Issued at the start of the step, it took 2.71 ms instead of 3.81 ms. It waits for no work of the GPU.
        ("two-late-issue", JobChanges(issue_earlier=True), 2_711_000),
        # 6.88 ms instead of 7.43 ms.
        ("two-large-buckets", JobChanges(bucket_mb=25), 6_879_000),
        # 25.2 ms instead of 29.0 ms.
        ("two-no-prefetch", JobChanges(issue_earlier=True), 25_185_000),
    ],
)
def test_the_step_of_the_fixed_program_is_predicted(
    folder: Path, name: str, changes: JobChanges, fixed_ns: int
) -> None:
    summaries = [summarize(load(str(path)), (), None) for path in sorted((folder / name).glob("rank*"))]
    result = predict_job(summaries, changes)
    assert result.plain, result.reasons
    step = result.predicted_step_ns
    assert step is not None and step.value == pytest.approx(fixed_ns, rel=0.07)
    assert step.low <= 1.02 * fixed_ns and fixed_ns <= step.high


def test_a_collective_that_is_issued_late_is_the_cause(folder: Path) -> None:
    assert shares(report(folder / "two-late-issue"))["late-issue"] > 0.9


def test_a_slow_recording_hardly_shows_what_a_late_rank_costs_the_program(folder: Path) -> None:
    """Recorded steps take 32 ms and plain ones 8.1 ms, without the sleep of rank 1 6.94 ms."""
    result = report(folder / "two-slow-recording")
    assert "so all of this delay may be the profiler's" in judge(result).text
    summaries = [summarize(load(str(path)), (), None) for path in sorted((folder / "two-slow-recording").glob("rank*"))]
    predicted = predict_job(summaries, JobChanges(no_straggler=True))
    assert predicted.replayed_step_ns == pytest.approx(8_100_000, rel=0.02)
    step = predicted.predicted_step_ns
    assert step is not None and step.value == pytest.approx(6_936_000, rel=0.1)
    assert predicted.replayed_step_ns is not None
    assert step.low <= 6_936_000 <= step.high and step.high >= predicted.replayed_step_ns


def test_compute_that_is_launched_late_blames_no_rank(folder: Path) -> None:
    """Rank 0 waits 1.8 ms in each collective, but no compute waits with it."""
    result = report(folder / "two-late-compute")
    assert judge(result).lead == "The 2 ranks are balanced: no rank delays the others by 1% of their time."
    assert result.ranks[0].waited_ns is not None and result.ranks[0].waited_ns > 3_000_000
    assert shares(result)["late-compute"] > 0.95


def test_a_collective_behind_another_one_of_its_communicator_is_blocked(folder: Path) -> None:
    """The small collective runs on the stream that computes, and begins when the large one has ended."""
    result = report(folder / "four-one-communicator")
    assert shares(result)["blocked-behind"] > 0.95


def test_exposed_communication_is_that_of_the_raw_files(folder: Path) -> None:
    result = report(folder / "four-one-communicator")
    for row in result.ranks:
        events = raw(folder / "four-one-communicator" / f"rank{row.rank}.trace.json")
        kernels = [event for event in events if event["cat"] == "kernel"]
        communication: list[tuple[int, int]] = []
        compute: list[tuple[int, int]] = []
        for kernel in kernels:
            (communication if "nccl" in kernel["name"] else compute).append(span(kernel))
        assert row.exposed_comm_ns == without(communication, compute)


# -- Copies between GPUs ---------------------------------------------------------------------------


def test_copies_between_gpus_have_their_bytes_and_times(folder: Path) -> None:
    trace = load(str(folder / "peer.trace.json"))
    ops = trace.gpu_ops
    rows = np.flatnonzero(ops.kind == Kind.P2P).tolist()
    copies = [event for event in raw(folder / "peer.trace.json") if event["cat"] == "gpu_memcpy"]
    assert {event["args"]["fromDevice"] != event["args"]["toDevice"] for event in copies} == {True}
    expected = sorted((event["args"]["bytes"], span(event)[1] - span(event)[0]) for event in copies)
    found = sorted((int(ops.bytes[row]), int(ops.end_ns[row] - ops.start_ns[row])) for row in rows)
    assert found == expected
    assert len(found) == 35
    stated = sorted((event["args"]["fromDevice"], event["args"]["toDevice"]) for event in copies)
    assert sorted(zip(ops.source_device[rows].tolist(), ops.target_device[rows].tolist(), strict=True)) == stated
