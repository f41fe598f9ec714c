"""Tests of the steps that inference servers mark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import overlapscope as ov
from overlapscope.analysis.average import judged_steps
from overlapscope.base.marks import is_step_name
from overlapscope.base.saved import encode
from overlapscope.commands import main
from overlapscope.ranks.join import report_on
from overlapscope.ranks.on_host import reduce_any
from overlapscope.ranks.verdict import doubts
from overlapscope.ranks.verdict import judge as judge_ranks
from overlapscope.reading import find_traces
from overlapscope.report.model import from_json
from overlapscope.report.page import Page
from overlapscope.report.tables import findings_note
from overlapscope.report.verdict import judge
from overlapscope.trace.servers import Phase, StepBatch, batch_in, batches, file_parts, step_name
from tests.support.kineto_files import host, write
from tests.support.served import Frames, Pass, TrueStep, true_steps, write_capture, write_server

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
        ("execute_context_1(888_788544)_generation_0(0)", StepBatch("prefill", 1, 888)),
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
        ("[Executor] _forward_step: 2 ctx reqs, 7 gen reqs", StepBatch("mixed", 9, None, 7)),
        ("forward_cudagraph", StepBatch("decode")),
        ("forward_eager", StepBatch("unclear")),
        ("execute_diffusion_1_512x512", StepBatch("diffusion", 1)),
    ],
)
def test_each_server_states_the_batch_of_a_step_in_its_own_form(mark: str, batch: StepBatch) -> None:
    assert batches([mark]) == {mark: batch}
    name = step_name(3, batch)
    assert batch_in(name) == batch and name.startswith("ProfilerStep#3 (")


counts = st.none() | st.integers(0, 10**15 - 1)


@given(st.sampled_from(get_args(Phase)), st.tuples(counts, counts), st.tuples(counts, counts))
def test_the_name_of_a_step_has_all_that_is_known_of_its_batch(
    phase: Phase, requests: tuple[int | None, int | None], tokens: tuple[int | None, int | None]
) -> None:
    decode = [part if whole is not None else None for whole, part in (requests, tokens)]
    batch = StepBatch(phase, requests[0], tokens[0], *decode)
    assert batch_in(step_name(3, batch)) == batch and is_step_name(step_name(3, batch))


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
        "draft_model_forward",
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


VERIFY = "step[TARGET_VERIFY bs=7 g_sq=21 g_sqsq=63 g_sqsk=2100 g_sk=700]"


@pytest.mark.parametrize(
    ("draft", "pass_", "phase"),
    [
        (["draft_model_forward", "forward_cudagraph"], ["forward_cudagraph"], "decode"),
        (
            ["draft", "step[DECODE bs=7 g_sq=28 g_sqsq=112 g_sqsk=2800 g_sk=700]"],
            [VERIFY],
            "decode: 7 requests; 21 tokens",
        ),
        (["draft_extend", "step[EXTEND bs=7 toks=21]"], [VERIFY], "decode: 7 requests; 21 tokens"),
    ],
)
def test_no_mark_within_a_draft_is_a_step(draft: list[str], pass_: list[str], phase: str, tmp_path: Path) -> None:
    path = write_server(tmp_path / "speculative.json", [Pass(draft), *[Pass(pass_), Pass(draft)] * 3])
    expected = [f"ProfilerStep#{number} ({phase})" for number in range(3)]
    assert [step.name for step in ov.analyze(path).traces[0].devices[0].steps] == expected
    assert not ov.load(write_server(tmp_path / "drafts.json", [Pass(draft)])).has_steps
    loop = [Pass(["scheduler.run_batch", *pass_, *draft])] * 3
    path = write_server(tmp_path / "loop.json", loop)
    assert [step.name for step in ov.analyze(path).traces[0].devices[0].steps] == expected


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


# -- Phases ----------------------------------------------------------------------------------------

SLOW = Pass([DECODE], graph=True, kernels=10, schedule=800)
SERVED = [Pass([PREFILL], gpu=3000), *[SLOW] * 4, Pass([MIXED], gpu=4000), *[SLOW] * 4]


@pytest.mark.parametrize("ahead", [False, True])
def test_each_phase_has_its_own_average_and_tokens(tmp_path: Path, ahead: bool) -> None:
    path = write_server(tmp_path / "trace.json", SERVED, ahead=ahead)
    truth = true_steps(path, [PREFILL, DECODE, MIXED])
    # The last step ends with the recording.
    each = {"prefill": truth[:1], "decode": truth[1:5] + truth[6:9], "mixed": truth[5:6]}
    tokens = {"prefill": 600, "decode": 7, "mixed": 621}
    (device,) = ov.analyze(path).traces[0].devices
    assert device.served and device.per_step is not None
    assert {phase.phase: phase.recorded for phase in device.served.phases} == {"prefill": 1, "decode": 8, "mixed": 1}
    for phase in device.served.phases:
        steps, figures = each[phase.phase], phase.per_step
        assert figures is not None and figures.steps == len(steps)
        span_ns = sum(step.end_ns - step.start_ns for step in steps)
        assert figures.span_ns == pytest.approx(span_ns / len(steps), abs=1)
        idle_ns = span_ns - sum(step.busy_ns for step in steps)
        assert figures.buckets.idle_ns == pytest.approx(idle_ns / len(steps), abs=1)
        assert sum(figures.idle_by_cause.values()) == figures.buckets.idle_ns
        assert phase.tokens_per_s == pytest.approx(tokens[phase.phase] * len(steps) * 1e9 / span_ns)
    judged = [step for steps in each.values() for step in steps]
    whole_ns = sum(step.end_ns - step.start_ns for step in judged)
    assert device.served.tokens_per_s == pytest.approx((600 + 7 * 7 + 621) * 1e9 / whole_ns)
    assert device.served.decode_tokens_per_s == pytest.approx((7 * 7 + 21) * 1e9 / whole_ns)


def test_the_figures_are_of_the_phase_that_takes_most_time(tmp_path: Path) -> None:
    path = write_server(tmp_path / "trace.json", SERVED, frames=Frames())
    report = ov.analyze(path)
    (device,) = report.traces[0].devices
    truth = true_steps(path, [PREFILL, DECODE, MIXED])
    decode = truth[1:5] + truth[6:9]
    assert device.per_step is not None and device.per_step.phase == "decode"
    assert device.per_step.span_ns == pytest.approx(sum(step.end_ns - step.start_ns for step in decode) / 7, abs=1)
    assert judged_steps(device) == (1, 2, 3, 4, 6, 7, 8)
    # Findings count time of decode steps only, and name the scheduler's line.
    (finding,) = report.findings
    assert (finding.rule, finding.steps, finding.saving) == ("python", 7, None)
    assert finding.where is not None and finding.where.line == "vllm/v1/core/sched/scheduler.py:1832 in schedule"
    idle = sum(step.end_ns - step.start_ns - step.busy_ns for step in decode)
    assert 0.9 * idle < finding.cost_ns <= idle
    assert from_json(encode(report)) == report


def test_a_report_begins_with_the_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_server(tmp_path / "trace.json", SERVED, frames=Frames())
    assert main(["analyze", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    verdict = " ".join(lines[: lines.index("")])
    assert "decode steps of 7 requests take 1.36 ms; the GPU is idle for 736 us (54.1%, mostly python)" in verdict
    assert "it waits for the host at vllm/v1/core/sched/scheduler.py:1832 in schedule" in verdict
    assert "Steps: marks of vLLM." in verdict
    table = lines[lines.index("") + 1 :]
    assert table[0].split() == ["by", "phase", "decode", "mixed", "prefill"]
    assert table[1].split() == ["steps", "8", "1", "1"] and table[2].split() == ["requests", "7", "9", "2"]


def test_lines_of_a_server_are_recorded_through_the_server(tmp_path: Path) -> None:
    report = ov.analyze(write_server(tmp_path / "trace.json", SERVED, frames=Frames()))
    nowhere = [replace(found, where=None) for found in report.findings]
    without = [replace(trace, environment=replace(trace.environment, flags={})) for trace in report.traces]
    assert "`overlapscope record --url URL --stacks`" in findings_note(without, nowhere)


def test_steps_of_unclear_phase_are_not_judged(tmp_path: Path) -> None:
    path = write_server(tmp_path / "trace.json", [Pass(["execute_new_0_cached_7"], gpu=50_000)] * 8, ahead=True)
    page = Page(ov.analyze(path))
    verdict = judge(next(page.sections()))
    assert verdict.level == "unknown"
    assert (
        verdict.lead.startswith("The marks of these steps don't tell prefill from decode")
        and "steps of 7 requests" in verdict.lead
    )


def test_a_diff_doubts_that_steps_of_different_phases_can_be_compared(tmp_path: Path) -> None:
    decode = write_server(tmp_path / "decode.json", [SLOW] * 9)
    prefill = write_server(tmp_path / "prefill.json", [Pass([PREFILL], gpu=3000)] * 9)
    doubts = {doubt.id: doubt.detail for doubt in ov.diff(decode, prefill).doubts}
    assert doubts["phases"] == (
        "Most time goes to decode steps of 7 requests before, to prefill steps of 2 requests after."
    )
    assert "phases" not in {doubt.id for doubt in ov.diff(decode, decode).doubts}


def test_an_only_step_may_begin_after_work_that_was_not_recorded(tmp_path: Path) -> None:
    path = write_server(tmp_path / "trace.json", [Pass([DECODE], gpu=50_000)])
    events = json.loads(path.read_text())["traceEvents"]
    for event in events:
        # The server's previous step still ran, as far as anyone knows.
        event["ts"] += 9000 if event["cat"] in ("kernel", "gpu_memcpy", "gpu_user_annotation") else 0
    verdict = judge(next(Page(ov.analyze(write(path, events))).sections()))
    assert verdict.lead.startswith("A decode step of 7 requests takes 50.0 ms") and "waited" not in verdict.lead
    assert "The only decode step of 7 requests ends with the recording" in verdict.steps
    # The time until the next step is part of a step, and not known.
    assert verdict.level == "unknown"


def test_an_average_over_several_phases_is_not_predicted(tmp_path: Path) -> None:
    path = write_server(tmp_path / "trace.json", SERVED)
    result = ov.whatif(path, ["no-sync cudaEventSynchronize"])
    assert not result.replay.valid and "several phases (prefill, decode and mixed)" in result.replay.reasons[0]
    path = write_server(tmp_path / "decode.json", [SLOW] * 9)
    assert ov.whatif(path, ["no-sync cudaEventSynchronize"]).replay.valid


# -- Recordings that say nothing of the program's speed --------------------------------------------


def test_a_recording_of_captures_is_recognised_and_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_capture(tmp_path / "graph_capture_rank_0.pt.trace.json", "capture_32_FULL")
    assert main(["analyze", str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "is of captures of CUDA graphs (capture_32_FULL)" in out and "idle" not in out and "Findings" not in out
    report = ov.analyze(path)
    assert report.traces[0].trust.verdict == "unusable" and not report.findings
    assert main(["check", str(path), "--budget", "idle_pct <= 100 %"]) != 0


def test_a_program_that_captures_and_then_launches_graphs_is_judged(tmp_path: Path) -> None:
    events = json.loads(write_capture(tmp_path / "capture.json", "first").read_text())["traceEvents"]
    later = json.loads(write_server(tmp_path / "server.json", [SLOW] * 9).read_text())["traceEvents"]
    for event in later:
        event["ts"] += 10_000
        if "correlation" in event["args"]:
            event["args"]["correlation"] += 10**7
    path = write(tmp_path / "both.json", events + later)
    assert ov.analyze(path).traces[0].trust.verdict != "unusable"


def front_end(path: Path) -> Path:
    op = host("cpu_op", "aten::empty", 20, 5)
    return write(path, [host("python_function", "vllm/v1/engine/async_llm.py(520): generate", 0, 900), op])


def test_a_front_end_is_recognised_by_its_frames_or_its_file(tmp_path: Path) -> None:
    for name in ("trace.json", "host_77.async_llm.17.pt.trace.json"):
        (trace,) = ov.analyze(front_end(tmp_path / name)).traces
        assert trace.host is None and trace.trust.verdict == "unusable"
        (activity,) = (check for check in trace.trust.checks if check.id == "gpu-activity")
        assert activity.detail.startswith("This recording is of the front end of vLLM")


def test_a_directory_stands_for_the_workers_of_a_server(tmp_path: Path) -> None:
    front_end(tmp_path / "host_77.async_llm.17.pt.trace.json")
    for rank in (0, 1):
        name = f"dp0_pp0_tp{rank}_dcp0_ep{rank}_rank{rank}.18.pt.trace.json"
        write_server(tmp_path / name, [SLOW] * 4, distributedInfo={"rank": rank, "world_size": 2})
    found = find_traces(tmp_path)
    assert [file.name[:11] for file in found.files] == ["dp0_pp0_tp0", "dp0_pp0_tp1"]
    skipped = tmp_path / "host_77.async_llm.17.pt.trace.json"
    assert found.notes == (f"{skipped}: is skipped: it is of a server's front end, without a GPU.",)


def test_a_file_with_all_ranks_beside_theirs_is_left_out(tmp_path: Path) -> None:
    merged = tmp_path / "merged-17.trace.json.gz"
    merged.touch()
    assert find_traces(tmp_path).files == (merged,)
    for rank in (0, 1):
        (tmp_path / f"17-TP-{rank}-DP-0.trace.json.gz").touch()
    found = find_traces(tmp_path)
    assert merged not in found.files and len(found.files) == 2
    assert found.notes == (f"{merged}: is skipped: it has what the files of its ranks have.",)


def test_stages_and_replicas_of_a_server_are_not_recorded_more_than_once(tmp_path: Path) -> None:
    for rank in (0, 1):
        for stage, mark in (("EXTEND", PREFILL), ("DECODE", DECODE)):
            name = f"17-TP-{rank}-{stage}.trace.json"
            write_server(tmp_path / name, [Pass([mark])] * 4, distributedInfo={"rank": rank, "world_size": 2})
    report = report_on(row for path in find_traces(tmp_path).files for row in reduce_any(ov.load(path, periodic=False)))
    said = " ".join((judge_ranks(report).text, *doubts(report)))
    assert "2 ranks have a file for each of DECODE and EXTEND, as a server writes them; those of DECODE" in said
    assert "more than once" not in said and "Incomplete" not in said
    assert file_parts(["dp0_pp0_tp0_rank0.1.json", "dp1_pp0_tp0_rank0.1.json"]) == ("DP 0", "DP 1")
    assert file_parts(["1-TP-0.trace.json", "2-TP-0.trace.json"]) == ()


# -- Inside of steps and between them --------------------------------------------------------------


def test_gaps_of_a_graph_are_the_devices(tmp_path: Path) -> None:
    path = write_server(tmp_path / "trace.json", [Pass([DECODE], graph=True, kernels=20, gap=15)] * 9, ahead=True)
    report = ov.analyze(path)
    (device,) = report.traces[0].devices
    assert device.per_step is not None
    # All idle time but the gap before the graph's first kernel.
    by_cause = {cause: ns for cause, ns in device.per_step.idle_by_cause.items() if ns}
    assert by_cause["graph-gap"] == 19 * 15_000 and device.per_step.buckets.idle_ns - by_cause["graph-gap"] <= 15_000
    assert not report.findings
    verdict = judge(next(Page(report).sections()))
    assert "mostly graph-gap" in verdict.lead and "-bound" not in verdict.lead and not verdict.remedy


def test_a_wait_before_sampling_is_blamed_but_not_the_wait_for_the_result(tmp_path: Path) -> None:
    path = write_server(tmp_path / "trace.json", [SLOW._replace(sample=400)] * 9, frames=Frames())
    (device,) = ov.analyze(path).traces[0].devices
    assert device.per_step is not None
    causes = device.per_step.idle_by_cause
    assert causes["host-sync"] == pytest.approx(400_000, rel=0.05)
    assert causes["python"] == pytest.approx(800_000, rel=0.05)


SGLANG = Frames(
    schedule="sglang/srt/managers/scheduler.py(1900): get_next_batch_to_run",
    wait=("sglang/srt/managers/scheduler.py(1200): self_check_during_idle",),
    polls=6,
)


@pytest.mark.parametrize("frames", [Frames(), SGLANG])
def test_waiting_for_requests_is_no_loss_and_belongs_to_no_step(tmp_path: Path, frames: Frames) -> None:
    wait_us = 55_000
    busy, late = [SLOW] * 4, SLOW._replace(wait=wait_us)
    path = write_server(tmp_path / "trace.json", [*busy, late, *busy], frames=frames)
    (device,) = ov.analyze(path).traces[0].devices
    assert device.served and device.served.awaiting_requests_ns == 1000 * wait_us
    truth = true_steps(path, [DECODE])
    # The host waited from the end of a step to its scheduling of the next, and launches take 4 us to begin.
    begin = truth[4].start_ns - 1000 * (SLOW.schedule + 13 + wait_us) + 4000
    expected = [
        *truth[:3],
        TrueStep(truth[3].start_ns, begin, truth[3].busy_ns),
        TrueStep(begin + 1000 * wait_us, *truth[4][1:]),
        *truth[5:],
    ]
    assert recorded(path) == expected
    spans = [step.end_ns - step.start_ns for step in expected[:-1]]
    assert device.per_step is not None and device.per_step.span_ns == pytest.approx(sum(spans) / len(spans), abs=1)
    assert not device.per_step.idle_by_cause["awaiting-requests"]
    assert sum(step.span_ns for step in device.steps) + 1000 * wait_us == device.span_ns
    (finding,) = ov.analyze(path).findings
    assert finding.rule == "python" and finding.cost_ns < 1000 * wait_us
