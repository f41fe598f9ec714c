"""Tests that sends and receives are read from traces as PyTorch writes them, for NCCL and for gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overlapscope import load
from overlapscope.ranks.comm_result import GroupCollective
from overlapscope.ranks.join import report_on
from overlapscope.ranks.on_host import reduce_any
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.result import RanksReport
from tests.support.kineto_files import Event, call, host, kernel, write

KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
STEP = 10_000
"""Microseconds of a step."""
Way = tuple[str, int]
"""`send` or `recv`, and the other rank."""


def note(way: Way, ts: float, *, elements: int = 1024, group: str = "[0, 1]") -> Event:
    """Return the op that notes a send or receive, which lasts 10 us."""
    key = "Dst Rank" if way[0] == "send" else "Src Rank"
    stated: dict[str, Any] = {
        "Collective name": way[0],
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "pp",
        "Process Group Description": "mesh_pp",
        "Process Group Ranks": group,
        key: way[1],
    }
    return host("cpu_op", "record_param_comms", ts, 10, **stated)


class RecordedRank:
    """A rank whose steps compute and then send or receive."""

    def __init__(self, rank: int, steps: int = 3) -> None:
        self.rank, self.steps = rank, steps
        self.events: list[Event] = []
        self._number = 0

    def launch(self, at: float, name: str, start: float, dur: float, *, stream: int = 7, **args: Any) -> None:
        self._number += 1
        self.events += [
            call(at, 2, self._number),
            kernel(start, dur, stream=stream, correlation=self._number, name=name, **args),
        ]

    def compute(self, at: float, start: float, dur: float) -> None:
        self.launch(at, "gemm", start, dur)

    def single(self, way: Way, at: float, start: float, dur: float) -> None:
        """Launch a kernel inside the note of its message."""
        stated = note(way, at)
        self.events.append(stated)
        self.launch(
            at + 5, KERNEL, start, dur, stream=20, **{k: v for k, v in stated["args"].items() if k[-4:] != "Rank"}
        )

    def batch(self, ways: list[Way], at: float, start: float, dur: float, *, elements: int = 1024) -> None:
        """Launch a kernel after the notes of all its messages."""
        self.events += [note(way, at + 20 * number, elements=elements) for number, way in enumerate(ways)]
        end = at + 20 * len(ways)
        self.events.append(host("user_annotation", "nccl:coalesced", end, 10))
        self.launch(end + 5, KERNEL, start, dur, stream=20)

    def reduced(self, folder: Path) -> ReducedRank:
        steps = [host("user_annotation", f"ProfilerStep#{n}", n * STEP, STEP - 1) for n in range(self.steps)]
        distributed = {"rank": self.rank, "world_size": 2, "pg_count": 1}
        path = write(folder / f"rank{self.rank}.json", [*steps, *self.events], distributedInfo=distributed)
        (rank,) = reduce_any(load(str(path)))
        return rank


def report(*ranks: ReducedRank) -> RanksReport:
    return report_on(ranks)


def rows(result: RanksReport) -> dict[str, GroupCollective]:
    return {row.collective: row for row in result.communication.rows}


def two_stages(folder: Path, *, batched: bool, elements: int = 1024) -> list[ReducedRank]:
    """Return two ranks. Each step, the first computes 3 ms and sends, the second answers after 2 ms.

    A transfer takes 1 ms, and both receive as early as they can.
    """
    first, second = RecordedRank(0), RecordedRank(1)
    for step in range(3):
        at = step * STEP
        first.compute(at + 10, at + 20, 3000)
        second.compute(at + 100, at + 4020, 2000)
        messages: list[tuple[RecordedRank, Way, float, float, float]] = [
            (first, ("send", 1), 30, 3020, 1000),
            (second, ("recv", 0), 30, 50, 3970),
            (second, ("send", 0), 130, 6020, 1000),
            (first, ("recv", 1), 80, 4020, 3000),
        ]
        for rank, way, issued, start, dur in messages:
            if batched:
                rank.batch([way], at + issued, at + start, dur, elements=elements)
            else:
                rank.single(way, at + issued, at + start, dur)
        first.compute(at + 200, at + 7030, 500)
    return [first.reduced(folder), second.reduced(folder)]


@pytest.mark.parametrize("batched", [False, True])
def test_messages_of_nccl_are_paired_and_split_into_waiting_and_transfer(tmp_path: Path, batched: bool) -> None:
    ranks = two_stages(tmp_path, batched=batched)
    for rank, other in zip(ranks, (1, 0), strict=True):
        assert rank.messages.peer.tolist() == [other] * 6
        assert rank.messages.bytes.tolist() == [4096] * 6
    result = report(*ranks)
    assert result.matching.paired == 12
    every = rows(result)
    assert {*every} == ({"batch_isend_irecv"} if batched else {"send", "recv"})
    time = result.communication.time
    steps = result.communication.steps
    # The second rank's receives wait for 2.97 ms, the first rank's for 2 ms.
    assert (time.waiting_ns, time.unjudged_ns) == (steps * (2_970_000 + 2_000_000), 0)
    assert time.transfer_ns == steps * 4 * 1_000_000
    for row in every.values():
        assert row.description == "mesh_pp"
        assert row.bus_gb_per_s == pytest.approx(4096 / 1_000_000)


def three_ranks(folder: Path) -> list[ReducedRank]:
    """Return three ranks. In each step, that in the middle waits for both others in its first kernel only."""
    ranks = [RecordedRank(rank) for rank in range(3)]
    for step in range(3):
        at = step * STEP
        for rank, ways, start, dur in (
            (0, ["send"], 1200, 1000),
            (1, ["recv", "send"], 200, 5000),
            (2, ["recv"], 4200, 1000),
            (0, ["recv"], 6200, 1000),
            (1, ["send", "recv"], 6200, 1000),
            (2, ["send"], 6200, 1000),
            (0, ["send"], 8200, 500),
            (1, ["recv", "send"], 8200, 500),
            (2, ["recv"], 8200, 500),
        ):
            peers = (0, 2) if rank == 1 else (1,)
            ranks[rank].batch(list(zip(ways, peers, strict=True)), at + start - 100, at + start, dur)
        for rank in range(3):
            ranks[rank].compute(at + 10, at + 20, 50)
    return [rank.reduced(folder) for rank in ranks]


def test_a_batch_waits_for_the_last_of_its_counterparts(tmp_path: Path) -> None:
    ranks = three_ranks(tmp_path)
    assert ranks[1].messages.peer.tolist() == [0, 2, 0, 2, 0, 2] * 3
    result = report(*ranks)
    assert result.matching.paired == 27
    assert [row.exposed_comm_by_cause["message-wait"] for row in result.ranks] == [0, 3 * 4_000_000, 0]


def test_a_batch_with_a_counterpart_that_is_missing_is_not_judged(tmp_path: Path) -> None:
    result = report(*three_ranks(tmp_path)[:2])
    assert result.matching.paired == 9
    # Each kernel of rank 1 has a message of rank 2.
    missing = "9 of 18 kernels that send or receive are not judged: of 9 the other rank was not recorded."
    assert missing in result.notes


def test_two_kernels_after_the_same_notes_have_no_known_messages(tmp_path: Path) -> None:
    rank = RecordedRank(0)
    for step in range(3):
        at = step * STEP
        rank.compute(at + 10, at + 20, 50)
        rank.batch([("recv", 1), ("send", 1)], at + 100, at + 200, 500)
        rank.launch(at + 200, KERNEL, at + 900, 50, stream=20)
    assert len(rank.reduced(tmp_path).messages) == 0


def test_a_message_of_an_unknown_type_does_not_have_the_size_of_another(tmp_path: Path) -> None:
    rank = RecordedRank(0, steps=1)
    known, unknown = note(("send", 1), 100), note(("recv", 1), 120)
    unknown["args"]["dtype"] = "Float4"
    rank.events += [known, unknown]
    rank.launch(140, KERNEL, 200, 50, stream=20, **{k: v for k, v in known["args"].items() if k[-4:] != "Rank"})
    rank.compute(300, 400, 50)
    assert rank.reduced(tmp_path).messages.bytes.tolist() == [4096, -1]


def test_sizes_that_differ_are_not_paired(tmp_path: Path) -> None:
    first, _ = two_stages(tmp_path, batched=True)
    _, second = two_stages(tmp_path, batched=True, elements=2048)
    result = report(first, second)
    assert result.matching.paired == 0
    assert any("sizes or times do not fit" in note for note in result.notes)


# -- gloo ----------------------------------------------------------------------------------------------


def gloo(folder: Path, rank: int, *, world_size: int, groups: int = 1, shapes: bool = True) -> ReducedRank:
    """Return a rank that sends to the next rank and receives from the one before, in each step."""
    events = []
    for step in range(3):
        at = step * STEP
        events.append(host("user_annotation", f"ProfilerStep#{step}", at, STEP - 1))
        events.append(host("cpu_op", "aten::mm", at + 10, 1000))
        for op, name, peer, begin in (
            ("c10d::send", "gloo:send", rank + 1, 2000),
            ("c10d::recv_", "gloo:recv", rank - 1, 4000),
        ):
            if 0 <= peer < world_size:
                inputs: dict[str, Any] = {"Concrete Inputs": ["", "", str(peer), "0"]} if shapes else {}
                sizes: dict[str, Any] = {"Input Dims": [[8, 8]], "Input type": ["float"]} if shapes else {}
                events.append(host("cpu_op", op, at + begin, 100, **inputs))
                events.append(host("user_annotation", name, at + begin + 90, 500, **sizes))
    distributed = {"rank": rank, "world_size": world_size, "pg_count": groups}
    path = write(folder / f"rank{rank}.json", events, distributedInfo=distributed, record_shapes=int(shapes))
    (reduced,) = reduce_any(load(str(path)))
    return reduced


def test_gloo_states_the_peer_if_shapes_were_recorded(tmp_path: Path) -> None:
    messages = gloo(tmp_path, 1, world_size=3).messages
    assert messages.peer.tolist() == [2, 0] * 3
    assert messages.outgoing.tolist() == [1, 0] * 3
    assert messages.bytes.tolist() == [256] * 6


def test_a_peer_within_one_of_several_groups_is_not_taken_for_a_rank(tmp_path: Path) -> None:
    assert len(gloo(tmp_path, 1, world_size=3, groups=2).messages) == 0


def test_a_thread_has_the_messages_of_its_own_ops(tmp_path: Path) -> None:
    """Two threads send by turns, and each range begins inside the op of its own thread."""
    events = [host("user_annotation", "ProfilerStep#0", 0, 1000), host("user_annotation", "ProfilerStep#1", 1000, 1000)]
    for number in range(8):
        at, thread = 100 * number, 1 + number % 3
        inputs = {"Concrete Inputs": ["", "", str(1 + number % 2), "0"]}
        events.append(host("cpu_op", "c10d::send", at, 250, tid=thread, **inputs))
        events.append(host("user_annotation", "gloo:send", at + 220 + number, 40, tid=thread))
    # This op has ended.
    events.append(host("user_annotation", "gloo:send", 1500, 40))
    path = write(tmp_path / "rank0.json", events, distributedInfo={"rank": 0, "world_size": 3, "pg_count": 1})
    (reduced,) = reduce_any(load(str(path)))
    assert reduced.messages.kernel.tolist() == list(range(8))
    assert reduced.messages.peer.tolist() == [1, 2] * 4
    assert reduced.messages.begin_ns.tolist() == [100_000 * number for number in range(8)]


def test_of_two_ranks_the_peer_is_the_other(tmp_path: Path) -> None:
    assert gloo(tmp_path, 1, world_size=2, shapes=False).messages.peer.tolist() == [0] * 3
    assert len(gloo(tmp_path, 1, world_size=3, shapes=False).messages) == 0


@pytest.mark.parametrize("peer", [-5, 1 << 40, 10**30, "1", None, [1], 0.5])
@pytest.mark.parametrize("key", ["Dst Rank", "In msg nelems", "Group size"])
def test_absurd_arguments_leave_a_message_unknown(key: str, peer: Any, tmp_path: Path) -> None:
    first, second = RecordedRank(0), RecordedRank(1)
    for rank in (first, second):
        for step in range(2):
            rank.compute(step * STEP + 10, step * STEP + 20, 50)
            way = ("send", 1) if rank is first else ("recv", 0)
            rank.batch([way], step * STEP + 100, step * STEP + 200, 500)
    for event in first.events:
        if event["name"] == "record_param_comms":
            event["args"][key] = peer
    result = report(first.reduced(tmp_path), second.reduced(tmp_path))
    assert result.matching.paired in (0, 4)


@pytest.mark.parametrize(
    "inputs", [["", "", "9" * 40, "0"], ["", "", "-1", "0"], ["", ""], ["", "", "١", "0"], "2", None]
)
def test_absurd_inputs_leave_the_peer_unknown(inputs: Any, tmp_path: Path) -> None:
    assert len(gloo(tmp_path, 1, world_size=3).messages) == 6
    path = tmp_path / "rank1.json"
    text = json.loads(path.read_text())
    for event in text["traceEvents"]:
        if event["name"].startswith("c10d"):
            event["args"]["Concrete Inputs"] = inputs
    path.write_text(json.dumps(text))
    (reduced,) = reduce_any(load(str(path)))
    assert len(reduced.messages) == 0


def test_a_batch_with_a_note_that_cannot_be_read_has_no_known_messages(tmp_path: Path) -> None:
    rank = RecordedRank(0)
    for step in range(2):
        rank.compute(step * STEP + 10, step * STEP + 20, 50)
        rank.batch([("send", 1), ("recv", 1)], step * STEP + 100, step * STEP + 200, 500)
    notes = [event for event in rank.events if event["name"] == "record_param_comms"]
    del notes[1]["args"]
    assert rank.reduced(tmp_path).messages.kernel.tolist() == [1, 1]
