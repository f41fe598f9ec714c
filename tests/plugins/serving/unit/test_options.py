"""Advice on inference servers."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from overlapscope.base.words import GPU, fill
from overlapscope.plugins.serving.options import expose_less, launch_graphs, read_late, schedule_ahead
from overlapscope.reading.steps import server_steps
from overlapscope.trace.model import Kind, Trace
from overlapscope.trace.servers import MARKS, marks_in
from tests.core.rules.test_host_findings import finding
from tests.support.helpers import MS, US, Host, Op, make_trace


def _served(trace: Trace) -> Trace:
    return server_steps(trace, marks_in(trace))


@pytest.mark.parametrize("number", range(2))
def test_a_server_is_told_its_own_options_and_none_of_training(number: int) -> None:
    mark = ("execute_context_0(0)_generation_8(8)", "step[DECODE bs=8]")[number]
    ops = [
        op
        for at in range(0, 60 * MS, 10 * MS)
        for op in (
            Op(Kind.COMPUTE, at, at + 5 * MS, launch=(at - 20 * US, at - 10 * US), call="cudaGraphLaunch"),
            Op(
                Kind.COMM,
                at + 5 * MS,
                at + 9 * MS,
                30,
                launch=(at - 9 * US, at - 5 * US),
                name="ncclDevKernel_AllReduce",
            ),
        )
    ]
    notes = [Host(mark, at - 30 * US, at) for at in range(0, 60 * MS, 10 * MS)]
    advice = finding(_served(make_trace(ops, annotations=notes)), "exposed-comm").advice
    assert advice == fill(expose_less(("vLLM", "SGLang")[number]), GPU)
    assert ("--tensor-parallel-size", "--tp-size")[number] in advice
    assert not re.search("DDP|FSDP|no_sync|async_op", advice)


def test_batches_without_a_graph_are_named() -> None:
    ops, shown, notes = [], [], []
    for number, requests in enumerate((5, 5, 3, 5, 5, 3, 5)):
        begin = number * 10 * MS
        notes.append(Host(f"execute_context_0(0)_generation_{requests}({requests})", begin, begin + 9 * MS))
        for at in range(begin + MS, begin + (2 if requests == 3 else 9) * MS, MS):
            call = "cudaGraphLaunch" if requests == 3 else "cudaLaunchKernel"
            ops.append(Op(Kind.COMPUTE, at, at + 100 * US, launch=(at - 20 * US, at - 10 * US), call=call))
            shown.append(Host("aten::mm", at - 900 * US, at - 5 * US))
    found = finding(_served(make_trace(ops, cpu_ops=shown, annotations=notes)), "dispatch")
    assert "4 of 6 steps launch no CUDA graph: those of 5 requests." in found.detail
    assert found.advice == fill(launch_graphs("vLLM"), GPU)


def test_options_of_older_versions_are_said_to_be_so() -> None:
    assert "`--cuda-graph-max-bs-decode` (until 2026 without `-decode`)" in launch_graphs("SGLang")


@pytest.mark.parametrize("advise", [expose_less, launch_graphs, read_late, schedule_ahead])
@pytest.mark.parametrize("server", [*MARKS, "the configuration"])
def test_there_is_advice_for_every_server_that_marks_steps(advise: Callable[[str], str], server: str) -> None:
    first, second = advise(server).split("\n")
    assert first.endswith(".") and second.endswith(".")
