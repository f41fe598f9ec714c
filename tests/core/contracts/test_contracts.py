"""A contract holds whatever time the program takes, and each loss is caught with its reason and its line."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope import load
from overlapscope.analysis import analyze_trace
from overlapscope.analysis.order import HappensBefore, stated_order, strictest_order
from overlapscope.base.marks import COLLECTIVE, WORK_WAIT
from overlapscope.compare.groups import pairs
from overlapscope.contracts.compare import Promise, compare
from overlapscope.contracts.judge import judge, promise
from overlapscope.contracts.model import Beside, Contract, TransferGroup, from_toml, to_toml
from overlapscope.contracts.observe import observe
from overlapscope.errors import ConfigError
from overlapscope.report.model import build
from overlapscope.trace.model import Kind, Memory, Sync, Trace
from tests.support.helpers import TRACES, Host, Op, make_trace

REPEATS = Path(__file__).parents[2] / "repeats.tar.xz"
PROGRAMS = ("training", "prefetch", "offload", "decode")


@pytest.fixture(scope="module")
def repeats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recordings of the same programs, again and again, and of changes to them."""
    folder = tmp_path_factory.mktemp("repeats")
    wanted = (
        "clean.1.",
        "clean.2.",
        "clean.5.",
        "pageable.1.",
        "default_stream.1.",
        "synchronize.1.",
        "compute_10pct.1.",
    )
    with tarfile.open(REPEATS) as archive:
        members = [each for each in archive if Path(each.name).name.startswith(wanted)]
        archive.extractall(folder, members, filter="data")
    return folder / "repeats"


@cache
def contract_of(path: Path) -> Contract:
    return observe(load(path, progress=False))


def losses(contract: Contract, now: Contract) -> dict[str, Promise]:
    """Return what is lost or unknown, by the promise's part."""
    return {each.part: each for each in compare(contract, now) if each.result in ("lost", "unknown")}


@pytest.mark.parametrize("program", PROGRAMS)
def test_other_recordings_of_the_program_on_two_machines_keep_its_contract(program: str, repeats: Path) -> None:
    contract = contract_of(repeats / "first" / program / "clean.1.trace.json")
    others = [path for path in repeats.glob(f"*/{program}/c*.json") if "copy" not in path.name]
    assert len(others) > 5
    for other in others:
        assert not losses(contract, contract_of(other)), other


@pytest.mark.parametrize("program", ["training", "prefetch", "offload"])
def test_pageable_memory_and_the_compute_stream_are_caught_with_the_reason(program: str, repeats: Path) -> None:
    folder = repeats / "first" / program
    contract = contract_of(folder / "clean.1.trace.json")
    pageable = losses(contract, contract_of(folder / "pageable.1.trace.json"))
    assert "pageable" in pageable["memory"].message
    assert pageable["overlap"].message.endswith("The reason is pageable memory.")
    merged = losses(contract, contract_of(folder / "default_stream.1.trace.json"))
    assert "may run beside no kernel" in merged["overlap"].message
    assert "same stream 7" in merged["overlap"].message


@pytest.mark.parametrize(("allocating", "lost"), [([1], False), ([1, 4, 7], True), ([*range(10)], True)])
def test_allocations_that_recur_in_some_steps_are_caught_and_a_single_one_is_not(
    allocating: list[int], lost: bool
) -> None:
    def program(steps: list[int], pinning: list[int] | None = None) -> Trace:
        ops = [
            Op(Kind.COMPUTE, 100 * step + 20, 100 * step + 60, 7, launch=(100 * step + 10, 100 * step + 15))
            for step in range(10)
        ]
        mallocs = [Host("cudaMalloc", 100 * step + 30, 100 * step + 35) for step in steps]
        notes = [Host(f"ProfilerStep#{step}", 100 * step, 100 * step + 99) for step in range(10)]
        pins = [Host("aten::pin_memory", 100 * step + 40, 100 * step + 45) for step in pinning or []]
        return make_trace(ops, calls=mallocs, annotations=notes, cpu_ops=pins)

    assert ("allocation" in losses(observe(program([])), observe(program(allocating)))) == lost
    pinned = losses(observe(program([])), observe(program([], allocating))).get("allocation")
    assert (pinned and pinned.name) == ("allocation aten::pin_memory" if len(allocating) == 10 else None)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_new_synchronize_is_caught(program: str, repeats: Path) -> None:
    folder = repeats / "first" / program
    contract = contract_of(folder / "clean.1.trace.json")
    lost = losses(contract, contract_of(folder / "synchronize.1.trace.json"))
    assert [*lost] == ["sync"]
    assert lost["sync"].message == "new host sync: cudaDeviceSynchronize, 1 a step; by the contract 0."


PAIRS = [
    ("further/batches/pinned_blocking", "further/batches/pageable_blocking", {"memory"}),
    ("further/batches/pinned_non_blocking", "further/batches/pinned_blocking", {"sync"}),
    ("further/loader/workers", "further/loader/no_workers", {"loader"}),
    ("further/loss_item/none", "further/loss_item/item", {"sync"}),
    ("further/perceptron/graph", "further/perceptron/eager", {"launches"}),
    ("further/results/pinned", "further/results/pageable", {"memory", "sync"}),
    ("further/small_copies/one", "further/small_copies/many", {"amount", "launches"}),
    ("further/synchronized/none", "further/synchronized/synchronize", {"sync"}),
    ("second/convnet/pinned", "second/convnet/pageable", {"memory"}),
    ("second/generate/none", "second/generate/item", {"sync"}),
    ("second/recommender/packed", "second/recommender/apart", {"amount", "launches"}),
    ("second/texts/workers", "second/texts/no_workers", {"loader"}),
    ("second/timed/none", "second/timed/synchronize", {"sync"}),
]


@pytest.mark.parametrize(("good", "bad", "parts"), PAIRS)
def test_what_sets_a_pair_of_programs_apart_is_lost(good: str, bad: str, parts: set[str]) -> None:
    contract, now = (contract_of(TRACES / f"{name}.json.gz") for name in (good, bad))
    assert {*losses(contract, now)} == parts
    assert not losses(contract, contract)


@pytest.mark.parametrize(("good", "bad", "parts"), PAIRS)
def test_what_sets_a_pair_of_programs_apart_is_a_gain_the_other_way(good: str, bad: str, parts: set[str]) -> None:
    contract, now = (contract_of(TRACES / f"{name}.json.gz") for name in (bad, good))
    changes = compare(contract, now)
    assert parts & {each.part for each in changes if each.result == "gained"}


def test_a_loss_names_its_line() -> None:
    lost = losses(
        contract_of(TRACES / "known_causes/launch_bound.json.gz"),
        contract_of(TRACES / "known_causes/item_every_step_stacks.json.gz"),
    )
    assert lost["sync"].line == "known_causes.py:272 in step"
    assert "aten::item" in lost["sync"].message


@pytest.mark.parametrize(("callers", "line"), [((1,), "train.py:10 in step"), ((1, 3), "")])
def test_a_call_in_a_backward_pass_has_the_line_that_called_it(callers: tuple[int, ...], line: str) -> None:
    frames = [Host("train.py(10): step", 0, 900, thread) for thread in callers]
    frames += [Host("torch/autograd/graph.py(860): _engine_run_backward", 100, 800, thread) for thread in callers]
    node = "autograd::engine::evaluate_function: IndexBackward0"
    trace = make_trace(
        [Op(Kind.COMPUTE, 210, 290, launch=(200, 205), thread=2)],
        calls=[Host("cudaStreamSynchronize", 210, 300, 2), Host("cudaStreamSynchronize", 400, 410, 4)],
        cpu_ops=[Host(node, 150, 350, 2), Host("aten::item", 390, 420, 4)],
        python_frames=frames,
    )
    syncs = {sync.op: sync.line for sync in observe(trace).syncs}
    assert syncs == {"IndexBackward0": line, "aten::item": ""}


def test_gains_are_not_losses(repeats: Path) -> None:
    folder = repeats / "first" / "training"
    worse, better = (contract_of(folder / f"{name}.1.trace.json") for name in ("default_stream", "clean"))
    changes = compare(worse, better)
    assert not losses(worse, better)
    assert [each.part for each in changes if each.result == "gained"] == ["overlap"]


# -- Mutations in memory ------------------------------------------------------------------------------


@pytest.fixture
def training(repeats: Path) -> Trace:
    return load(repeats / "first/training/clean.1.trace.json", progress=False)


def test_the_same_recording_keeps_its_contract(training: Trace) -> None:
    assert {each.result for each in compare(observe(training), observe(training))} == {"kept"}


def test_device_times_change_nothing(training: Trace) -> None:
    ops, rng = training.gpu_ops, np.random.default_rng(0)
    start = np.sort(rng.integers(0, 10**12, len(ops)))
    moved = replace(training, gpu_ops=replace(ops, start_ns=start, end_ns=start + rng.integers(1, 10**9, len(ops))))
    assert observe(moved) == observe(training)


def test_merged_streams_are_caught(training: Trace) -> None:
    ops = training.gpu_ops
    merged = replace(training, gpu_ops=replace(ops, stream=np.full(len(ops), 7, np.int32)))
    assert "same stream 7" in losses(observe(training), observe(merged))["overlap"].message


def test_pageable_memory_is_caught(training: Trace) -> None:
    ops = training.gpu_ops
    changed = np.where(ops.bytes > 1 << 20, np.int8(Memory.PAGEABLE), ops.source_kind)
    lost = losses(observe(training), observe(replace(training, gpu_ops=replace(ops, source_kind=changed))))
    assert {*lost} == {"memory", "overlap"}


def test_managed_memory_instead_of_pinned_is_caught(training: Trace) -> None:
    ops = training.gpu_ops
    changed = np.where(ops.source_kind == Memory.PINNED, np.int8(Memory.MANAGED), ops.source_kind)
    lost = losses(observe(training), observe(replace(training, gpu_ops=replace(ops, source_kind=changed))))
    assert {*lost} == {"memory"} and "is managed, by the contract pinned." in lost["memory"].message


def test_a_wait_for_an_event_that_was_recorded_later_is_caught(training: Trace) -> None:
    """The compute stream waits at once for the copy that it needs in the next step: for the copies' latest record."""
    syncs = training.syncs
    waits = np.flatnonzero((syncs.kind == Sync.STREAM_WAIT_EVENT) & (syncs.source_stream == 13))
    record = syncs.record_correlation.copy()
    record[waits[:-1]] = record[waits[1:]]
    at = {int(correlation): row for row, correlation in enumerate(training.runtime_calls.correlation)}
    possible = [row for row in waits[:-1] if record[row] in at and record[row] < syncs.correlation[row]]
    assert possible, "the next copy is launched before the wait"
    early = replace(training, syncs=replace(syncs, record_correlation=record))
    message = losses(observe(training), observe(early))["overlap"].message
    assert "event wait for stream 13" in message


def test_dropped_waits_are_a_gain(repeats: Path) -> None:
    trace = load(repeats / "first/prefetch/clean.1.trace.json", progress=False)
    calls, launch = trace.runtime_calls, trace.gpu_ops.launch
    waits = calls.named(lambda name: name == "cudaStreamWaitEvent")
    free = replace(
        trace,
        syncs=trace.syncs.take(trace.syncs.kind != Sync.STREAM_WAIT_EVENT),
        runtime_calls=calls.take(~waits),
        gpu_ops=replace(trace.gpu_ops, launch=np.where(launch >= 0, (np.cumsum(~waits) - 1)[launch], -1)),
    )
    changes = compare(observe(trace), observe(free))
    assert {each.part for each in changes if each.result == "gained"} == {"overlap"}


# -- What can't be told -------------------------------------------------------------------------------


def test_without_sync_events_overlap_is_unknown_and_never_kept(training: Trace) -> None:
    blind = replace(training, syncs=training.syncs.take(slice(0, 0)))
    lost = losses(observe(training), observe(blind))
    assert lost["overlap"].result == "unknown"
    assert "sync events" in lost["overlap"].message


def test_without_launches_everything_of_the_gpu_is_unknown(training: Trace) -> None:
    ops = training.gpu_ops
    lost = losses(observe(training), observe(replace(training, gpu_ops=replace(ops, launch=np.full(len(ops), -1)))))
    assert [each.result for each in lost.values()] == ["unknown"]


# -- Waits inside of PyTorch, whose events CUDA 13 doesn't state ----------------------------------------


@pytest.fixture(scope="module")
def collectives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of an all-reduce beside five products, and of a small one between them in another group."""
    folder = tmp_path_factory.mktemp("collectives")
    name = "collectives/four-two_collectives-base/rank0.trace.json"
    with tarfile.open(REPEATS.parent / "collectives.tar.xz") as archive:
        archive.extract(name, folder, filter="data")
    return folder / name


def large(contract: Contract) -> TransferGroup:
    return max(contract.collectives, key=lambda group: group.bytes)


def test_a_collective_has_the_part_of_its_overlap_that_is_certain(collectives: Path) -> None:
    contract = contract_of(collectives)
    assert large(contract).beside == (Beside(1, 5, 10),)
    assert large(contract).ends == "before aten::matmul at worst: wait for an unknown event (record_param_comms)"
    assert from_toml(to_toml(contract), "x") == contract
    assert {each.result for each in compare(contract, contract)} == {"kept"}


def of_program(recording: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the CPU ops and runtime calls of a recording in order."""
    events = [event for event in recording["traceEvents"] if event.get("cat") in ("cpu_op", "cuda_runtime")]
    return sorted(events, key=lambda event: float(event["ts"]))


def is_wait(event: dict[str, Any]) -> bool:
    return "wait" in event.get("args", {}).get("Collective name", ())


def wait_at_once(recording: dict[str, Any]) -> None:
    """Move each wait for the large all-reduce to right after its launch, and let it run beside one kernel."""
    for event in recording["traceEvents"]:
        if event.get("cat") == "kernel" and "nccl" in event["name"]:
            event["dur"] = 1
    events, free = of_program(recording), 0.0
    for event in events:
        if event["name"] == "c10d::allreduce_" and not free:
            free = event["ts"] + event["dur"]
        if is_wait(event):
            moved, end = free + 1 - event["ts"], event["ts"] + event["dur"]
            for other in [other for other in events if event["ts"] <= other["ts"] <= end]:
                other["ts"] += moved
            free = 0.0


def add_notes(recording: dict[str, Any]) -> None:
    """Add the recorder's notes on collectives that Python launches on stream 7, and on waits for the large one."""
    number = 0
    for event in of_program(recording):
        if event["name"] == "c10d::allreduce_":
            number += 1
            note = f"{COLLECTIVE}{number}@0.7"
        elif is_wait(event):
            note = f"{WORK_WAIT}{number - (number + 1) % 2}@0.7"  # Collectives with odd numbers are large.
        else:
            continue
        around = {"name": note, "ts": event["ts"] - 0.5, "dur": event["dur"] + 1, "args": {}}
        recording["traceEvents"].append(event | around)


def edited(path: Path, folder: Path, *edits: Callable[[dict[str, Any]], None]) -> Contract:
    """Return the contract of a recording after some edits of its file."""
    recording = json.loads(path.read_text())
    for edit in edits:
        edit(recording)
    (folder / "edited.json").write_text(json.dumps(recording))
    return observe(load(folder / "edited.json", progress=False))


def test_a_wait_right_after_a_collective_is_never_kept(collectives: Path, tmp_path: Path) -> None:
    (uncertain,) = losses(contract_of(collectives), edited(collectives, tmp_path, wait_at_once)).values()
    assert (uncertain.result, uncertain.limit, uncertain.value) == ("unknown", 4, 1)
    assert "before aten::matmul at worst: wait for an unknown event (record_param_comms)" in uncertain.message


def test_with_notes_the_overlap_of_a_collective_is_exact(collectives: Path, tmp_path: Path) -> None:
    contract = edited(collectives, tmp_path, add_notes)
    assert large(contract).beside == (Beside(1, 5, 5),)
    assert large(contract).begins == "after aten::matmul: event wait for stream 7"
    assert large(contract).ends == "before aten::matmul: event wait for stream 43"
    assert not contract.unknown
    assert not losses(contract_of(collectives), contract)
    early = edited(collectives, tmp_path, wait_at_once, add_notes)
    for before in (contract, contract_of(collectives)):
        (lost,) = losses(before, early).values()
        assert (lost.result, lost.value) == ("lost", 0)
        assert "event wait for stream 43" in lost.message


def test_a_window_that_is_too_small_even_at_best_is_lost(collectives: Path) -> None:
    contract = contract_of(collectives)
    group = large(contract)

    def result(*beside: tuple[int, int, int]) -> str:
        runs = tuple(Beside(*run) for run in beside)
        changed = replace(group, beside=runs, count=sum(run.times for run in runs))
        changes = (changed if each is group else each for each in contract.collectives)
        now = replace(contract, collectives=tuple(changes))
        return next((each.result for each in compare(contract, now) if each.part == "overlap"), "")

    assert result() == result((0, 0, 3)) == ""
    assert result((1, 0, 3)) == result((1, 0, 0)) == result((1, 0, 0), (3, 5, 5)) == "lost"
    assert result((1, 0, 4)) == result((1, 3, 10)) == result((1, 0, 4), (3, 5, 5)) == "unknown"
    assert result((1, 4, 4)) == result((1, 9, 9)) == result((2, 4, 4)) == "kept"
    assert result((1, 20, 20)) == "gained"


def test_groups_are_paired_in_linear_time() -> None:
    asked = 0

    def key(group: int) -> int:
        nonlocal asked
        asked += 1
        return group

    matched, gone, new = pairs(range(1000), range(500, 2000), [key, lambda group: key(group) % 7])
    assert (len(matched), len(gone), len(new)) == (1000, 0, 500)
    assert asked < 2 * 2500


def test_a_communicator_orders_its_collectives_on_all_streams(collectives: Path) -> None:
    trace = load(collectives, progress=False)
    ops = trace.gpu_ops
    collective = np.flatnonzero(ops.kind == Kind.COMM)
    assert ops.stream[collective].tolist()[:2] == [43, 7]

    def first_on_compute_stream_waits(trace: Trace, by: Callable[[Trace], HappensBefore] = stated_order) -> bool:
        order = by(trace)
        rows = order.item_of_op[collective[:2]]
        first, then = ((int(order.items.lane[row]), int(order.items.place[row])) for row in rows)
        return order.cause(first, then) is not None

    one_event = replace(trace.syncs, event=np.ones(len(trace.syncs), np.int64))
    assert not first_on_compute_stream_waits(trace)
    assert first_on_compute_stream_waits(replace(trace, syncs=one_event))
    # NCCL may have replaced the event of a communicator meanwhile.
    waits = trace.syncs.kind == Sync.STREAM_WAIT_EVENT
    changed = replace(trace, syncs=replace(trace.syncs, event=1 + (2 * np.cumsum(waits) > waits.sum())))
    assert not first_on_compute_stream_waits(changed)
    assert first_on_compute_stream_waits(changed, strictest_order)


# -- The file -----------------------------------------------------------------------------------------


def test_the_file_reads_back_as_the_contract(training: Trace) -> None:
    contract = observe(training)
    assert from_toml(to_toml(contract), "x") == contract
    assert len(to_toml(contract)) < 4096


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            "version = 1",
            "version = 2",
            "is no contract of version 1; write it again with `overlapscope contract write`.",
        ),
        ("margin_pct", "margn_pct", "Object contains unknown field `margn_pct`."),
        ('op = "', "op = 3 # ", "Expected `str`, got `int` - at `$.copies[0].op`."),
        ("margin_pct = 25", "margin_pct = 100", "Expected `int` <= 99 - at `$.margin_pct`."),
        ("beside = ", "# ", "Object missing required field `beside` - at `$.copies[0]`."),
        ("beside = [[1, ", "beside = [[3, ", "`beside` is for 3 of 1 - at `$.copies[0]`."),
        ('memory = "pinned"', 'memory = "pined"', "no copy is of kind 'H2D' and memory 'pined'."),
        ("launches = ", "# ", "Object missing required field `launches`."),
        ("ranks = ", "# ", "program has no ranks; `overlapscope contract write` states all."),
        ("[program.kernels]", "# ", "program has no kernels; `overlapscope contract write` states all."),
        ("[program.kernels]", "[program.kernels]\nk = nan", "Expected `float` >= 0.0 - at `$.program.kernels[...]`."),
    ],
)
def test_a_wrong_or_missing_key_is_an_error_that_names_it(
    right: str, wrong: str, message: str, training: Trace
) -> None:
    with pytest.raises(ConfigError) as error:
        from_toml(to_toml(observe(training)).replace(right, wrong, 1), "x")
    assert str(error.value) == f"x: {message}"


# -- Programs without a GPU --------------------------------------------------------------------------


def on_host(*ops: str, loader: str = "_MultiProcessingDataLoaderIter", elsewhere: tuple[str, ...] = ()) -> Contract:
    """Return the contract of a program without a GPU that runs these ops in each of four steps, some of them on another
    thread; `outer/inner` are two ops of which one is in the other."""
    marks, calls = [], []
    for step in range(4):
        marks.append(Host(f"ProfilerStep#{step}", 1_000 * step, 1_000 * (step + 1)))
        marks.append(Host(f"enumerate(DataLoader)#{loader}.__next__", 1_000 * step + 1, 1_000 * step + 5))
        for number, (name, thread) in enumerate([*((op, 1) for op in ops), *((op, 2) for op in elsewhere)]):
            begin = 1_000 * step + 10 + 20 * number
            calls += [Host(part, begin + at, begin + 15 - at, thread) for at, part in enumerate(name.split("/"))]
    return observe(make_trace(cpu_ops=calls, annotations=marks))


OPS = ("aten::linear/aten::addmm", "aten::relu", "aten::mean", "MeanBackward0/aten::div")
READ = "aten::item/aten::_local_scalar_dense"


def test_without_a_gpu_the_same_ops_keep_the_contract() -> None:
    contract = on_host(*OPS, READ)
    assert contract.host_ops == 5 and [(call.op, call.count) for call in contract.syncs] == [("aten::item", 1)]
    assert {each.result for each in compare(contract, on_host(READ, *reversed(OPS)))} == {"kept"}


@pytest.mark.parametrize(
    ("now", "part", "message"),
    [
        (on_host(*OPS, READ), "sync", "new read of a value: aten::item, 1 a step; by the contract 0."),
        (on_host(*OPS, "aten::mul", "aten::add"), "launches", "6 ops a step; by the contract 4."),
        (on_host(*OPS, loader="_SingleProcessDataLoaderIter"), "loader", "loader workers lost"),
    ],
)
def test_without_a_gpu_reads_more_ops_and_lost_workers_are_losses(now: Contract, part: str, message: str) -> None:
    lost = losses(on_host(*OPS), now)
    assert list(lost) == [part] and message in lost[part].message


def test_without_a_gpu_ops_that_leave_the_thread_of_the_steps_are_a_gain() -> None:
    inline, beside = on_host(*OPS, "aten::randn", "aten::sort"), on_host(*OPS, elsewhere=("aten::randn", "aten::sort"))
    assert not losses(inline, beside)
    assert list(losses(beside, inline)) == ["launches"]


def test_without_a_gpu_a_recording_without_ops_on_the_thread_of_the_steps_is_not_judged() -> None:
    marks = [Host(f"ProfilerStep#{step}", 1_000 * step, 1_000 * (step + 1)) for step in range(4)]
    working, elsewhere = (
        make_trace(
            cpu_ops=[Host("aten::linear", 1_000 * step + 10, 1_000 * step + 20, thread) for step in range(4)],
            annotations=marks,
        )
        for thread in (1, 2)
    )
    contract = promise(working)
    for trace, judged in ((working, True), (elsewhere, False)):
        obstacles, promises = judge(contract, trace, build([analyze_trace(trace)]).traces[0])
        assert (not obstacles, bool(promises)) == (judged, judged)


def test_a_recording_with_a_gpu_is_not_judged_by_a_contract_without_one() -> None:
    with_gpu = observe(
        make_trace([Op(Kind.COMPUTE, 20, 40, launch=(10, 15))], annotations=[Host("ProfilerStep#1", 0, 50)])
    )
    for pair in ((with_gpu, on_host(*OPS)), (on_host(*OPS), with_gpu)):
        assert losses(*pair)["overlap"].result == "unknown"
