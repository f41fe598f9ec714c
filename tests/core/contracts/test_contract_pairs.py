"""No loss of overlap passes a contract, and nothing else fails it: pairs of recordings and of random programs."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest

from overlapscope import load
from overlapscope.contracts.compare import compare
from overlapscope.contracts.model import Contract
from overlapscope.contracts.observe import observe
from tests.fuzz.contracts import DOWNLOAD, LARGE, UPLOAD, RandomAct, RandomProgram, contract_of, defects_of, judge_seeds
from tests.support.helpers import TRACES

_LOSSES = """
    further/training/prefetched > further/training/late
    further/training/prefetched > further/training/naive
    further/pipeline/three_streams > further/pipeline/one_stream
    further/pipeline/three_streams > further/pipeline/pageable
    further/kv_decode/prefetch > further/kv_decode/on_demand
    further/weight_offload/prefetch > further/weight_offload/layer_by_layer
    further/results/side_stream > further/results/pinned
    further/results/side_stream > further/results/pageable
    further/state_offload/two_copy_streams > further/state_offload/one_copy_stream
    second/activations/side_streams > second/activations/pinned
    second/activations/side_streams > second/activations/pageable
    second/checkpoint/side_stream > second/checkpoint/pinned
    second/checkpoint/side_stream > second/checkpoint/pageable
    second/convnet/prefetched > second/convnet/non_blocking
    second/frames/two_copy_streams > second/frames/one_copy_stream
    second/frames/two_copy_streams > second/frames/one_stream
    second/nearest/side_stream > second/nearest/one_stream
    second/nearest/side_stream > second/nearest/pageable
    pipeline_3stream > pipeline_1stream
    streamed1_pinned1 > streamed0_pinned1
    streamed1_pinned1 > streamed1_pinned0
    streamed1_pinned1 > streamed0_pinned0
    known_causes/healthy_prefetch > known_causes/late_issue
    known_causes/healthy_prefetch > known_causes/same_stream
    known_causes/healthy_prefetch > known_causes/pageable_memory
"""
LOSSES = [tuple(line.split(" > ")) for line in _LOSSES.strip().split("\n    ")]


@cache
def observed(name: str) -> Contract:
    return observe(load(TRACES / f"{name}.json.gz", progress=False))


@pytest.mark.parametrize(("good", "bad"), LOSSES)
def test_a_recording_that_lost_overlap_never_passes(good: str, bad: str) -> None:
    contract = observed(good)
    assert {"lost", "unknown"} & {promise.result for promise in compare(contract, observed(bad))}
    assert {promise.result for promise in compare(contract, contract)} == {"kept"}


def test_random_programs_pass_unless_they_lose_something() -> None:
    tally, findings = judge_seeds(range(20))
    assert not findings
    assert sum(tally.values()) == 100 and len(tally) >= 4


def prefetch(*acts: RandomAct, size: int = LARGE, stream: int = UPLOAD, between: int = 0) -> RandomProgram:
    """Return a program that uploads the next step's data on a stream, beside some kernels."""
    copy = RandomAct("upload", stream, size=size)
    kernels = [RandomAct("kernel")] * 6
    return RandomProgram(
        (RandomAct("wait", event=5), *kernels, copy, RandomAct("record", stream, event=5), *acts), between, "everything"
    )


def results(before: RandomProgram, after: RandomProgram, folder: Path) -> dict[str, str]:
    """Return the results of all promises that aren't just kept, by name."""
    contract, now = (contract_of(program, random.randrange(99), folder) for program in (before, after))
    return {each.name: each.result for each in compare(contract, now) if each.result != "kept"}


@pytest.mark.parametrize(("device", "beside"), [(0, (2, 2)), (1, (6, 12))])
def test_a_synchronize_that_ops_outlast_is_of_another_device(
    device: int, beside: tuple[int, int], tmp_path: Path
) -> None:
    kernels = (RandomAct("kernel"), RandomAct("kernel"))
    acts = (*kernels, *kernels, RandomAct("device sync", device=device), *kernels, RandomAct("download", DOWNLOAD))
    program = RandomProgram((*acts, RandomAct("device sync")), 0, "nothing")
    contract = contract_of(program, 0, tmp_path)
    assert not [*defects_of(program, contract)]
    assert [(run.least, run.most) for run in contract.copies[0].beside] == [beside]


def test_another_batch_size_is_the_same_program(tmp_path: Path) -> None:
    large = prefetch(size=300_000)
    assert results(large, prefetch(size=300_000 // 8), tmp_path) == {}
    merged = results(large, prefetch(size=60_000, stream=7), tmp_path)
    assert merged == {"overlap of H2D 300 kB (aten::copy_)": "lost"}


@pytest.mark.parametrize("between", [0, 2])
@pytest.mark.parametrize(
    ("act", "lost"),
    [
        (RandomAct("poll", UPLOAD, event=9), "host sync cudaEventQuery"),
        (RandomAct("stream sync", UPLOAD), "host sync cudaStreamSynchronize"),
        (RandomAct("upload", size=4, op="aten::fill_"), "amount of H2D 4 B (aten::fill_)"),
    ],
)
def test_what_the_host_does_in_a_step_or_before_the_next_one_is_judged(
    act: RandomAct, lost: str, between: int, tmp_path: Path
) -> None:
    record = RandomAct("record", UPLOAD, event=9)
    found = results(prefetch(record), prefetch(record, act, between=between), tmp_path)
    assert found.pop(lost) == "lost"


def test_copies_between_gpus_have_promises(tmp_path: Path) -> None:
    aside, merged = (prefetch(RandomAct("peer", stream, op="aten::to")) for stream in (DOWNLOAD, 7))
    assert results(aside, merged, tmp_path) == {"overlap of P2P 1.05 MB (aten::to)": "lost"}


def test_copies_that_only_the_host_recorded_are_unknown(tmp_path: Path) -> None:
    program = prefetch()
    blind = program._replace(acts=tuple(act._replace(lost=act.what == "upload") for act in program.acts))
    assert results(program, blind, tmp_path) == {
        "copies recorded in part": "unknown",
        "amount of H2D 1.05 MB (aten::copy_)": "unknown",
    }


def test_a_contract_without_promises_is_unknown_and_says_why(tmp_path: Path) -> None:
    acts = prefetch().acts
    late = (*acts[:-2], RandomAct("record", event=6), RandomAct("wait", UPLOAD, event=6), *acts[-2:])
    contract = contract_of(RandomProgram(late, 0, "stream"), 1, tmp_path)
    (unknown,) = [each for each in compare(contract, contract) if each.result == "unknown"]
    assert unknown.message.startswith(
        "The contract promises no overlap. 1 copy a step promises nothing here: it ran beside no kernel, and the "
        "recording doesn't state whether it may. Of "
    )
    assert unknown.message.endswith("Record with `overlapscope run`.")
