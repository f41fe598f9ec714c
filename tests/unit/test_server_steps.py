"""Tests of the steps that inference servers mark."""

from __future__ import annotations

from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.trace.server_steps import StepBatch, batch_in, batches, step_name
from tests.support.served import Pass, TrueStep, true_steps, write_server

PREFILL, DECODE = "execute_context_2(600)_generation_0(0)", "execute_context_0(0)_generation_7(7)"
MIXED = "execute_context_2(600)_generation_7(21)"


@pytest.mark.parametrize(
    ("mark", "batch"),
    [
        ("execute_new_1_cached_7", StepBatch("unclear", 8)),
        ("execute_new_2_cached_0", StepBatch("prefill", 2)),
        ("execute_new_0_cached_7", StepBatch("unclear", 7)),
        (PREFILL, StepBatch("prefill", 2, 600)),
        (DECODE, StepBatch("decode", 7, 7)),
        (MIXED, StepBatch("mixed", 9, 621, 7, 21)),
        ("execute_context_0(0)_generation_0(0)", StepBatch("empty", 0, 0)),
        (
            "execute_607_context_2(sq600sk900sqsq180000sqsk270000)_generation_7(sq7sk700sqsq7sqsk700)",
            StepBatch("mixed", 9, 607, 7, 7),
        ),
        ("step[prefill bs=2 toks=600]", StepBatch("prefill", 2, 600)),
        ("step[mixed bs=9 toks=607 ext=2 dec=7]", StepBatch("mixed", 9, 607, 7)),
        ("step[idle]", StepBatch("empty")),
        ("step[EXTEND bs=2 toks=600]", StepBatch("prefill", 2, 600)),
        ("step[DECODE bs=7]", StepBatch("decode", 7, 7)),
        ("step[DECODE bs=7 g_sq=14 g_sqsq=28 g_sqsk=1400 g_sk=700]", StepBatch("decode", 7, 14)),
        ("step[EXTEND bs=2 toks=12 c_sq=12 c_sqsq=80 c_sqsk=120 c_sk=20]", StepBatch("prefill", 2, 12)),
        (
            "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]",
            StepBatch("mixed", 2, 6, 1, 1),
        ),
        ("step[MIXED bs=9]", StepBatch("mixed", 9)),
        ("step[PREBUILT bs=2]", StepBatch("unclear", 2)),
        ("scheduler.run_batch", StepBatch("unclear")),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", StepBatch("prefill", 2, 14721)),
        ("decode[bs=7/8 tok=7 d=7]", StepBatch("decode", 7, 7)),
        ("[Executor] _forward_step 40: 2 ctx reqs, 7 gen reqs", StepBatch("mixed", 9, None, 7)),
        ("[Executor] _forward_step 41: 2 ctx reqs, 600 ctx tokens, 0 gen reqs", StepBatch("prefill", 2, 600)),
        ("[Executor] _forward_step 42: 0 ctx reqs, 7 gen reqs", StepBatch("decode", 7)),
        ("forward_cudagraph", StepBatch("unclear")),
        ("execute_diffusion_1_512x512", StepBatch("diffusion", 1)),
    ],
)
def test_each_server_states_the_batch_of_a_step_in_its_own_form(mark: str, batch: StepBatch) -> None:
    assert batches([mark]) == {mark: batch}
    name = step_name(3, batch)
    assert batch_in(name) == batch and name.startswith("ProfilerStep#3 (")


@pytest.mark.parametrize(
    "name",
    [
        "## Call CompiledFxGraph f4ii27ddivzk ##",
        "gpu_model_runner: forward",
        "capture_8_FULL",
        "scheduler.recv_requests",
        "forward_loss",
        "step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]",
        "step[DRAFT_EXTEND_V2 bs=3]",
        "ProfilerStep#3",
        "iteration 7",
    ],
)
def test_other_ranges_are_no_steps_of_a_server(name: str) -> None:
    assert not batches([name])


def test_a_request_that_guesses_has_an_unknown_number_of_tokens() -> None:
    stated = batches(["step[DECODE bs=7]", "step[TARGET_VERIFY bs=7]", "step[DRAFT_EXTEND_V2 bs=7]"])
    assert stated == {"step[DECODE bs=7]": StepBatch("decode", 7), "step[TARGET_VERIFY bs=7]": StepBatch("decode", 7)}


def recorded(path: Path) -> list[TrueStep]:
    (trace,) = ov.analyze(path).traces
    (device,) = trace.devices
    return [
        TrueStep(step.window.start_ns, step.window.end_ns, step.span_ns - step.buckets.idle_ns) for step in device.steps
    ]


PASSES = [Pass([PREFILL], gpu=3000), *[Pass([DECODE], graph=True, kernels=10)] * 4, Pass([MIXED], gpu=4000)]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("scheduled", [False, True])
def test_a_step_reaches_from_its_first_op_to_that_of_the_next_mark(
    tmp_path: Path, ahead: bool, scheduled: bool
) -> None:
    path = write_server(tmp_path / "rank0.1.pt.trace.json", PASSES, ahead=ahead, scheduled=scheduled)
    assert recorded(path) == true_steps(path, [PREFILL, DECODE, MIXED])
    (trace,) = ov.analyze(path).traces
    assert trace.step_source == "marks of vLLM"
    assert [step.name for step in trace.devices[0].steps] == [
        "ProfilerStep#0 (prefill: 2 requests; 600 tokens)",
        *[f"ProfilerStep#{number} (decode: 7 requests; 7 tokens)" for number in range(1, 5)],
        "ProfilerStep#5 (mixed: 9 requests, 7 decode; 621 tokens, 21 decode)",
    ]


def test_a_single_mark_comes_before_what_repeats(tmp_path: Path) -> None:
    path = write_server(tmp_path / "trace.json", [Pass([DECODE], kernels=200, gpu=20_000)])
    assert recorded(path) == true_steps(path, [DECODE])


def test_of_nested_marks_the_outermost_counts_and_an_inner_one_may_state_the_batch(tmp_path: Path) -> None:
    patched = ["execute_7_context_0(sq0sk0sqsq0sqsk0)_generation_7(sq7sk70sqsq7sqsk70)", "step[DECODE bs=7]"]
    path = write_server(tmp_path / "patched.json", [Pass(patched)] * 3)
    assert len(recorded(path)) == 3 and recorded(path) == true_steps(path, patched[:1])
    assert ov.load(path).step_source == "marks of SGLang"
    loop = [
        Pass(["scheduler.run_batch", "step[EXTEND bs=2 toks=600]"]),
        Pass(["scheduler.run_batch", "step[DECODE bs=2]"]),
    ]
    path = write_server(tmp_path / "loop.json", loop)
    assert recorded(path) == true_steps(path, ["scheduler.run_batch"])
    steps = ov.analyze(path).traces[0].devices[0].steps
    assert [batch_in(step.name) for step in steps] == [StepBatch("prefill", 2, 600), StepBatch("decode", 2, 2)]


def test_a_configuration_adds_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_server(tmp_path / "trace.json", [Pass(["mine 3+4 of 900"])] * 3)
    (tmp_path / "overlapscope.toml").write_text(
        r"server_steps = ['mine (?P<prefill>\d+)\+(?P<decode>\d+) of (?P<tokens>\d+)']"
    )
    trace = ov.load(path)
    assert trace.step_source == "marks of the configuration"
    steps = ov.analyze(trace).traces[0].devices[0].steps
    assert {batch_in(step.name) for step in steps} == {StepBatch("mixed", 7, 900, 4)}
