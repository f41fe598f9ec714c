"""Advice on the communication of inference servers."""

from __future__ import annotations

import re

import pytest

from overlapscope.plugins.serving.options import expose_less
from overlapscope.reading.steps import server_steps
from overlapscope.trace.model import Kind
from overlapscope.trace.servers import MARKS
from tests.support.helpers import MS, US, Host, Op, make_trace
from tests.unit.test_host_findings import finding


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
    advice = finding(server_steps(make_trace(ops, annotations=notes)), "exposed-comm").advice
    assert advice == expose_less(("vLLM", "SGLang")[number])
    assert ("--tensor-parallel-size", "--tp-size")[number] in advice
    assert not re.search("DDP|FSDP|no_sync|async_op", advice)


def test_there_is_advice_for_every_server_that_marks_steps() -> None:
    for server in (*MARKS, "the configuration"):
        first, second = expose_less(server).split("\n")
        assert first.endswith(".") and second.endswith(".")
