"""Waits that only the times of ops show are in a replay, and the lucky end of an interval does without them."""

from __future__ import annotations

import pytest

from overlapscope.analysis.event_waits import EXACT, HIGH, LOW
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.graph import Graph, OrderReason
from overlapscope.prediction.graph_builder import build
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.outcomes import spread
from overlapscope.prediction.replay import replay
from overlapscope.trace.model import Kind, Memory
from tests.support.helpers import Host, Op, Wait, make_trace

FIRST, SECOND = 7, 13
US = 1000


def kernel(begin: int, end: int, stream: int = FIRST, launch: int = 0) -> Op:
    return Op(Kind.COMPUTE, begin * US, end * US, stream, (launch * US, (launch + 2) * US))


def lucky(graph: Graph) -> Graph:
    """Return the graph of a lucky run."""
    return spread(graph, Stance.BEST, plain=False, changed=True)


def test_a_start_that_nothing_explains_is_a_guess_and_a_lucky_run_has_no_such_wait() -> None:
    graph = build(make_trace([kernel(5, 500), kernel(501, 600, SECOND, launch=3)]), Constants())
    assert (graph.orders.why.tolist(), graph.orders.confidence.tolist()) == ([OrderReason.SEEN], [LOW])
    assert replay(graph).start_ns[1] == 501 * US
    assert len(lucky(graph).orders) == 0
    assert replay(lucky(graph)).start_ns[1] < 10 * US


def test_a_stated_wait_is_in_every_run() -> None:
    wait = Wait(4 * US, SECOND, source_stream=FIRST, record_correlation=1001)
    ops = [kernel(5, 500), kernel(501, 600, SECOND, launch=6)]
    graph = build(make_trace(ops, calls=[Host("cudaEventRecord", 3 * US, 4 * US)], waits=[wait]), Constants())
    assert (graph.orders.why.tolist(), graph.orders.confidence.tolist()) == ([OrderReason.EVENT], [EXACT])
    assert len(lucky(graph).orders) == 1


@pytest.mark.parametrize(("returned", "confidence", "kept"), [(505, HIGH, 1), (590, LOW, 0)])
def test_a_synchronize_of_an_unknown_event_is_likely_to_be_for_the_op_that_ended_right_before(
    returned: int, confidence: int, kept: int
) -> None:
    sync = Host("cudaEventSynchronize", 6 * US, returned * US)
    graph = build(make_trace([kernel(5, 500), kernel(6, 900, SECOND, launch=3)], calls=[sync]), Constants())
    assert (graph.waits.item.tolist(), graph.waits.confidence.tolist()) == ([0], [confidence])
    assert len(lucky(graph).waits) == kept


def test_calls_that_wait_for_the_device_are_no_guess() -> None:
    ops = [kernel(5, 500), kernel(6, 300, SECOND, launch=3), kernel(510, 520, launch=508)]
    for name in ("cudaDeviceSynchronize", "cudaFree"):
        graph = build(make_trace(ops, calls=[Host(name, 6 * US, 505 * US)]), Constants())
        assert sorted(graph.waits.item.tolist()) == [0, 1]
        assert graph.waits.confidence.tolist() == [EXACT, EXACT]


def test_a_download_to_pageable_memory_is_no_guess_and_a_small_upload_is_one() -> None:
    for kind, sides, confidence in (
        (Kind.D2H, (Memory.DEVICE, Memory.PAGEABLE), EXACT),
        (Kind.H2D, (Memory.PAGEABLE, Memory.DEVICE), HIGH),
    ):
        copy = Op(kind, 5 * US, 90 * US, FIRST, (0, 95 * US), "cudaMemcpyAsync", 1, *sides, size=1024)
        assert build(make_trace([copy]), Constants()).waits.confidence.tolist() == [confidence]
