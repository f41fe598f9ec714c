"""Tests of the join of a graph's replayed ops with its recorded capture."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import overlapscope as ov
from overlapscope.analysis import graphs
from overlapscope.analysis.graphs import origins
from overlapscope.commands import main
from overlapscope.errors import UnreadableTrace
from overlapscope.trace.model import Trace
from tests.support.outcomes import ROOT


class Captured(NamedTuple):
    """A call in a capture, with its op and module."""

    op: str = "aten::add"
    module: str = "Linear_0"
    call: str = "cudaLaunchKernel"


class Replayed(NamedTuple):
    """An op of a launch."""

    name: str = "kernel"
    stream: int = 7
    node: int = 0


COPY = Captured("aten::copy_", "Linear_0", "cudaMemcpyAsync")
FORK, JOIN = Captured("", "", "cudaEventRecord"), Captured("", "", "cudaStreamWaitEvent")
MODEL = (Captured("aten::embedding", "Embedding_0"), Captured("aten::mm", "Linear_0"), Captured("aten::mm", "Linear_1"))
KNOWN = ("embedding Embedding_0", "mm Linear_0", "mm Linear_1")


def event(category: str, name: str, at: float, length: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": at, "dur": length, "args": args}


def captured(calls: Sequence[Captured], at: float = 0) -> list[dict[str, Any]]:
    """Return the events of a capture, which takes a microsecond for each call."""
    events = [event("cuda_runtime", "cudaStreamBeginCapture", at, 0.1)]
    for number, (op, module, call) in enumerate(calls, 1):
        begin = at + number
        if op:
            events.append(event("python_function", f"model.py({number}): forward", begin, 0.9))
            events.append(event("python_function", f"nn.Module: {module}", begin + 0.1, 0.8))
            events.append(event("cpu_op", op, begin + 0.2, 0.6))
        events.append(event("cuda_runtime", call, begin + 0.3, 0.1, correlation=int(1000 + begin)))
    return [*events, event("cuda_runtime", "cudaStreamEndCapture", at + len(calls) + 1, 0.1)]


def launched(ops: Sequence[Replayed], at: float, number: int = 0) -> list[dict[str, Any]]:
    """Return the events of a launch of a graph, whose ops take a microsecond each, one after the other."""
    correlation = 100 + number
    events = [event("cuda_runtime", "cudaGraphLaunch", at, 0.5, correlation=correlation)]
    for place, (name, stream, node) in enumerate(ops, 1):
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        args = {"device": 0, "stream": stream, "correlation": correlation, "graph node id": node}
        events.append({**event(category, name, at + place, 1, **args), "pid": 0, "tid": stream})
    return events


def written(path: Path, *events: Sequence[dict[str, Any]]) -> Path:
    every = [each for part in events for each in part]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": every}))
    return path


def known(trace: Trace) -> list[str]:
    """Return op and module of the ops of graphs, in order of time; `?` for unknown ones."""
    found = origins(trace)
    joined = {
        int(row): " ".join(
            trace.names[number].rpartition(": ")[2] if number >= 0 else "?"
            for number in (found.op[place], found.module[place])
        )
        for place, row in enumerate(found.row)
    }
    return [joined.get(row, "none").replace("aten::", "") for row in range(len(trace.gpu_ops))]


def joined(tmp_path: Path, ops: Sequence[Replayed], *captures: Sequence[Captured]) -> list[str]:
    """Return op and module of a launch's ops, with captures in a file each."""
    folder = tmp_path / "captures"
    folder.mkdir()
    for number, calls in enumerate(captures):
        written(folder / f"{number}.json", captured(calls, 100 * number))
    return known(ov.load(written(tmp_path / "replay.json", launched(ops, 5000)), captures=folder))


def test_ops_of_a_chain_have_op_and_module_of_their_capture(tmp_path: Path) -> None:
    assert joined(tmp_path, [Replayed()] * 3, MODEL) == [*KNOWN]


def test_files_beside_captures_that_are_none_are_left_out(tmp_path: Path) -> None:
    # As TraceLens writes it.
    (tmp_path / "captures").mkdir()
    (tmp_path / "captures" / "execution_details.json").write_text('[{"file": "0.json", "mode": "FULL"}]')
    with pytest.raises(UnreadableTrace, match="none of its events can be read"):
        ov.load(written(tmp_path / "replay.json", launched([Replayed()], 5000)), captures=tmp_path / "captures")
    written(tmp_path / "captures" / "0.json", captured(MODEL))
    replay = written(tmp_path / "replay.json", launched([Replayed()] * 3, 5000))
    assert known(ov.load(replay, captures=tmp_path / "captures")) == [*KNOWN]


def test_a_capture_of_other_ops_fits_nothing(tmp_path: Path) -> None:
    ops = [Replayed(), Replayed("Memcpy DtoD (Device -> Device)"), Replayed()]
    assert joined(tmp_path, ops, MODEL, MODEL[:2], (COPY, *MODEL[:2])) == ["none"] * 3


def test_ops_that_are_named_after_kernels_tell_captures_apart(tmp_path: Path) -> None:
    first, second = (
        (MODEL[0], *(Captured(f"triton_{number}", f"Linear_{number}") for number in numbers))
        for numbers in ((0, 1), (1, 0))
    )
    ops = [Replayed("gather"), Replayed("triton_1"), Replayed("triton_0")]
    assert joined(tmp_path, ops, first, second) == [KNOWN[0], "triton_1 Linear_1", "triton_0 Linear_0"]


def test_only_what_all_captures_that_fit_agree_on_is_known(tmp_path: Path) -> None:
    other = (MODEL[0], MODEL[1], Captured("aten::bmm", "Linear_1"))
    assert joined(tmp_path, [Replayed()] * 3, MODEL, other, other[:2]) == [*KNOWN[:2], "? Linear_1"]


def test_nodes_tell_the_order_of_ops_on_several_streams(tmp_path: Path) -> None:
    ops = [Replayed(stream=8, node=4002), Replayed(stream=7, node=4001), Replayed(stream=7, node=4003)]
    assert joined(tmp_path, ops, (FORK, *MODEL, JOIN)) == [KNOWN[1], KNOWN[0], KNOWN[2]]


def test_the_order_within_branches_is_not_known(tmp_path: Path) -> None:
    branched = (MODEL[0], FORK, JOIN, *MODEL[1:], JOIN, MODEL[0])
    assert joined(tmp_path, [Replayed(stream=7 + number % 2) for number in range(4)], branched) == [
        KNOWN[0],
        "mm ?",
        "mm ?",
        KNOWN[0],
    ]


def test_branches_that_wait_for_an_unknown_event_may_begin_anywhere(tmp_path: Path) -> None:
    branched = (*MODEL[:2], JOIN, MODEL[0], FORK)
    assert joined(tmp_path, [Replayed(stream=7 + number % 2) for number in range(3)], branched) == [
        "? ?",
        "? ?",
        KNOWN[0],
    ]


def test_branches_that_no_event_shows_are_not_joined(tmp_path: Path) -> None:
    assert joined(tmp_path, [Replayed(stream=7 + number) for number in range(3)], MODEL) == ["none"] * 3


def test_a_step_that_launches_as_many_graphs_as_were_captured_launches_them_in_turn(tmp_path: Path) -> None:
    captures = written(tmp_path / "captures.json", *(captured(MODEL[n : n + 1], 10 * n) for n in range(3)))
    steps = [
        [event("user_annotation", f"ProfilerStep#{step}", at, 90)]
        + [each for n in range(3) for each in launched([Replayed()], at + 20 * n, 3 * step + n)]
        for step, at in enumerate((5000, 5100))
    ]
    assert known(ov.load(written(tmp_path / "replay.json", *steps), captures=captures)) == [*KNOWN, *KNOWN]
    # In another number, any of them may be any capture.
    fewer = [each for step in steps for each in step if each["args"].get("correlation") not in (102, 105)]
    assert known(ov.load(written(tmp_path / "replay.json", fewer), captures=captures)) == ["? ?"] * 4


def test_a_graph_that_ran_before_a_capture_is_another(tmp_path: Path) -> None:
    old, new = [Replayed("old")] * 3, [Replayed("new")] * 3
    recording = [launched(old, 0, 0), captured(MODEL, 50), launched(old, 100, 1), launched(new, 200, 2)]
    assert known(ov.load(written(tmp_path / "both.json", *recording))) == [*["none"] * 6, *KNOWN]


def test_a_graph_that_a_step_launches_twice_is_not_two_captures(tmp_path: Path) -> None:
    captures = written(tmp_path / "captures.json", *(captured(MODEL[n : n + 1], 10 * n) for n in range(2)))
    twice, others = (
        [each for n in range(2) for each in launched([Replayed(node=nodes[n])], 5000 + 20 * n, n)]
        for nodes in ((4001, 4001), (4001, 8001))
    )
    assert known(ov.load(written(tmp_path / "twice.json", twice), captures=captures)) == ["? ?"] * 2
    assert known(ov.load(written(tmp_path / "others.json", others), captures=captures)) == [*KNOWN[:2]]


def test_captures_that_may_lack_calls_or_have_those_of_others_fit_nothing(tmp_path: Path) -> None:
    replay, cut = written(tmp_path / "replay.json", launched([Replayed()] * 3, 5000)), captured(MODEL)[:-1]
    # Two threads capture at once, so that the second capture's end is the first after both beginnings.
    other = [{**each, "tid": 2} for each in captured(MODEL[:1], 2.5)]
    for number, events in enumerate((cut, [*cut, *captured(MODEL[:1], 50)], [*captured(MODEL[:2]), *other])):
        captures = written(tmp_path / f"captures-{number}.json", events)
        assert known(ov.load(replay, captures=captures)) == ["none"] * 3


def test_a_launch_that_the_end_of_the_recording_cut_off_is_not_a_smaller_graph(tmp_path: Path) -> None:
    captures = [written(tmp_path / f"{n}.json", captured(MODEL[:n])) for n in (2, 3)]
    replays = launched([Replayed()] * 3, 5000), launched([Replayed()] * 2, 5100, 1)
    assert known(ov.load(written(tmp_path / "cut.json", *replays), captures=captures)) == [*KNOWN, "none", "none"]
    last = launched([Replayed("other")], 5200, 2)
    whole = known(ov.load(written(tmp_path / "whole.json", *replays, last), captures=captures))
    assert whole == [*KNOWN, *KNOWN[:2], "none"]


def test_many_captures_and_launches_of_as_many_ops_are_joined_by_their_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared, fits = [], graphs._fits

    def counted(trace: Trace, launch: Any, capture: Any) -> bool:
        compared.append(launch)
        return fits(trace, launch, capture)

    monkeypatch.setattr(graphs, "_fits", counted)
    captures = written(tmp_path / "captures.json", *(captured(MODEL, 10 * n) for n in range(100)))
    launches = [launched([Replayed()] * 3, 5000 + 10 * n, n) for n in range(150)]
    assert known(ov.load(written(tmp_path / "replay.json", *launches), captures=captures)) == [*KNOWN] * 150
    assert len(compared) == 1


def test_captures_of_another_rank_are_not_used(tmp_path: Path) -> None:
    def of_rank(rank: int, events: list[dict[str, Any]]) -> Path:
        path = written(tmp_path / f"{rank}-{len(events)}.json", events)
        path.write_text(
            json.dumps({**json.loads(path.read_text()), "distributedInfo": {"rank": rank, "world_size": 2}})
        )
        return path

    captures = [of_rank(0, captured(MODEL)), of_rank(1, captured((*MODEL[:2], MODEL[1])))]
    replay = launched([Replayed()] * 3, 5000)
    assert known(ov.load(of_rank(0, replay), captures=captures)) == [*KNOWN]
    assert known(ov.load(of_rank(0, replay), captures=captures[1:])) == ["none"] * 3


def test_the_report_states_op_and_module_and_how_much_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captures = written(tmp_path / "captures.json", captured(MODEL))
    both = [launched([Replayed("gemm")] * 3, 5000), launched([Replayed("other")] * 2, 5100, 1)]
    replay = str(written(tmp_path / "replay.json", *both))
    assert main(["analyze", replay, "--capture", str(captures), "--format", "json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["traces"][0]["devices"]
    assert device["graphs"] == {
        "count": 5, "time_ns": 5000, "known_count": 3, "known_time_ns": 3000, "captured": True,
    }  # fmt: skip
    kernels = Counter[tuple[str, str | None, str | None]]()
    for each in device["kernels"]:
        kernels[each["kernel"], each["op"], each.get("module")] += each["count"]
    assert kernels == {
        ("gemm", "aten::mm", "Linear"): 2, ("gemm", "aten::embedding", "Embedding"): 1, ("other", None, None): 2,
    }  # fmt: skip
    main(["analyze", replay, "--capture", str(captures)])
    assert "known for 3 (3.00 us) of 5 GPU ops of CUDA graphs (5.00 us)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("model", ["recurrent", "served"])
def test_kernels_of_a_recorded_graph_have_op_and_module_of_those_without_one(model: str) -> None:
    # Models on an H200, recorded by benchmarks/graph_models.py: 3 iterations, and 3 replays of the graph of one.
    eager, captures, replay = (ROOT / f"tests/graphs/{model}-{part}.json.gz" for part in ("eager", "capture", "replay"))
    sides = [ov.analyze(trace).devices[0] for trace in (ov.load(eager), ov.load(replay, captures=captures))]
    assert sides[1].graphs and sides[1].graphs.known_count == sides[1].graphs.count
    without, with_graph = (Counter[tuple[object, ...]](), Counter[tuple[object, ...]]())
    for counts, device in zip((without, with_graph), sides, strict=True):
        for group in device.kernels:
            counts[group.kernel, group.op, group.module] += group.count
    assert with_graph == without and len({module for _, _, module in without}) > 2
