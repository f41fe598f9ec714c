"""Rules: on recordings whose truth follows from the program, and on minimal made-up traces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope import rules
from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.device import judged_windows
from overlapscope.analysis.groups import LARGE_BYTES
from overlapscope.base.words import duration, listed, plural, size
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES, OTHER_CAUSES
from overlapscope.catalog.measures import TINY_BYTES
from overlapscope.rules import RULES, compute_streams, copies
from overlapscope.rules._claims import MIN_TINY_COPIES, share_out
from overlapscope.rules.explained import examples, explanation
from overlapscope.rules.finding import Finding
from overlapscope.rules.findings import find_all
from overlapscope.rules.rule import Draft, name
from overlapscope.trace.model import Kind, Memory, Trace
from tests.core.analysis.test_sums import gpu_ops, host_events
from tests.support.helpers import MS, US, Host, Op, Wait, make_trace, various
from tests.support.recordings import analysis_of
from tests.support.rule_traces import MIB, blocking_uploads, collective, in_turns, scalars, two_streams, uploads

DATA = Path(__file__).parents[3] / "traces"
EACH = pytest.mark.parametrize("recording", various(), ids=lambda path: str(path.relative_to(DATA))[: -len(".json.gz")])


class ExpectedFindings(NamedTuple):
    """Findings that a recording must and may have."""

    warnings: dict[str, tuple[float, float]]
    """Rule -> least and most cost in ms, as follows from the program and a link of some 55 GB/s."""
    infos: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    """Warnings that are true and that the program says nothing of."""


# The times are of the judged steps: without the last one of two to four.
# 3 x 128 MiB of pinned copies: 7.3 ms at 55 GB/s.
_THREE_COPIES = (6.75, 7.9)
# Launching and clearing up between two long gaps of another cause.
_AFTERMATH = ("dispatch", "python", "cpu-ops")

TRUTH = {
    # Copies.
    "known_causes/pageable_memory": ExpectedFindings({}, ("overlap-achieved",)),
    "known_causes/same_stream": ExpectedFindings({"same-stream": _THREE_COPIES}),
    "known_causes/late_issue": ExpectedFindings({"late-prefetch": _THREE_COPIES}),
    "known_causes/late_issue_no_sync_events": ExpectedFindings({"late-prefetch": _THREE_COPIES}),
    "known_causes/event_wait": ExpectedFindings({"late-prefetch": _THREE_COPIES}),
    "known_causes/event_wait_no_sync_events": ExpectedFindings({"late-prefetch": _THREE_COPIES}),
    "known_causes/event_wait_reused_events": ExpectedFindings({"late-prefetch": _THREE_COPIES}),
    # Only the first copy is exposed, before the first step: later ones run under the compute of the step before.
    "known_causes/host_sync": ExpectedFindings({}, ("overlap-achieved",)),
    "known_causes/host_sync_stacks": ExpectedFindings({}, ("overlap-achieved",)),
    "known_causes/blocking_copy": ExpectedFindings({}, ("overlap-achieved",)),
    # In the first step the batch queues behind 512 MiB (9.7 ms), 5.4 ms of it beside two products.
    "known_causes/engine_busy": ExpectedFindings({"late-prefetch": (3.8, 5.0)}),
    "known_causes/no_compute": ExpectedFindings({}, ("overlap-achieved",)),
    # 9 x 64 MiB each way: 10.9 ms a direction.
    "known_causes/one_copy_stream": ExpectedFindings({"one-way-copies": (10.1, 11.3)}),
    "known_causes/healthy_prefetch": ExpectedFindings({}, ("overlap-achieved",)),
    "known_causes/healthy_prefetch_running_ahead": ExpectedFindings({}, ("overlap-achieved",)),
    # 600 copies of at least 1 us, and what compute (8 of 12 ms) leaves of the steps at most.
    "known_causes/many_small_copies": ExpectedFindings({"tiny-copies": (1.5, 4.0)}),
    # 3 x 64 MiB page-locked at 17 to 25 ms each; the copies themselves, 3 x 64 MiB, wait on the compute stream.
    "known_causes/pin_in_loop": ExpectedFindings({"pin-in-loop": (50, 66.5)}, may=("same-stream",)),
    # Idle time.
    "known_causes/item_every_step": ExpectedFindings({"host-sync": (0.4, 1.2)}),
    "known_causes/item_every_step_stacks": ExpectedFindings({"host-sync": (0.4, 1.4)}),
    "known_causes/launch_bound": ExpectedFindings({"dispatch": (3.4, 7.8)}, may=("python",)),
    "known_causes/launch_bound_graph": ExpectedFindings({}),
    # Three gaps between four batches of 8 x 2 ms and a bit, less the compute before each.
    "known_causes/data_loading": ExpectedFindings({"data-loading": (39, 45)}, may=("pageable-memory", *_AFTERMATH)),
    "known_causes/data_loading_stacks": ExpectedFindings(
        {"data-loading": (39, 45)}, may=("pageable-memory", *_AFTERMATH)
    ),
    # Three gaps of 10 ms less 2.7 ms of compute.
    "known_causes/host_compute": ExpectedFindings({"cpu-ops": (18, 23)}, may=("dispatch", "python")),
    "known_causes/allocation": ExpectedFindings({"allocation": (2, 4.4)}, may=_AFTERMATH),
    # Streams.
    "known_causes/backward_on_side_stream": ExpectedFindings({}, ("stream-without-work",)),
    "known_causes/two_streams_full_kernels": ExpectedFindings({}, ("streams-without-overlap",)),
    # A training step whose small kernels wait for launches: idle is 68 of 164, 31 of 111, 23 of 109 ms in three steps.
    "gpt2_train": ExpectedFindings({"dispatch": (20, 46)}, may=("python", "cpu-ops")),
    "ddp/rank0": ExpectedFindings({"dispatch": (8, 21)}, may=("python", "cpu-ops", "exposed-comm")),
    "ddp/rank1": ExpectedFindings({"dispatch": (6, 16), "exposed-comm": (5, 9)}, may=("python", "cpu-ops")),
    # All 18.3 ms of compute could hide copies, no more; the rest goes both ways, 1858 MB each at 55 GB/s.
    "pipeline_1stream": ExpectedFindings({"same-stream": (18.0, 18.6), "one-way-copies": (32, 35)}, may=("host-sync",)),
    "pipeline_3stream": ExpectedFindings({}, ("overlap-achieved",), may=("host-sync",)),
    "streamed0_pinned0": ExpectedFindings({"pageable-memory": (2.7, 4.1)}, may=_AFTERMATH),
    "streamed1_pinned0": ExpectedFindings({"pageable-memory": (2.5, 3.4)}, may=_AFTERMATH),
    # Compute takes 23 us in the judged one of two steps, so no more can be hidden.
    "streamed0_pinned1": ExpectedFindings({"same-stream": (0.02, 0.024)}, may=("host-sync",)),
    "streamed1_pinned1": ExpectedFindings({}, ("overlap-achieved",), may=("host-sync",)),
    "mixed_workloads/async_checkpoint": ExpectedFindings({}, ("overlap-achieved",)),
    "mixed_workloads/kv_offload": ExpectedFindings({}, ("overlap-achieved",)),
    "mixed_workloads/kv_offload_no_sync_events": ExpectedFindings({}, ("overlap-achieved",)),
    "mixed_workloads/kv_offload_running_ahead": ExpectedFindings({}, ("overlap-achieved",)),
}


def analysed(recording: str) -> TraceAnalysis:
    return analysis_of(DATA / f"{recording}.json.gz")


def findings_of(trace: Trace) -> dict[str, Finding]:
    return {finding.rule: finding for finding in find_all([analyze_trace(trace)])}


def warnings(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {finding.rule: finding for finding in findings if finding.severity != "info"}


# -- recordings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("recording", TRUTH)
def test_a_recording_yields_the_rules_its_program_breaks_and_no_others(recording: str) -> None:
    truth = TRUTH[recording]
    findings = find_all([analysed(recording)])
    warned = warnings(findings)
    assert set(truth.warnings) <= set(warned) <= {*truth.warnings, *truth.may}
    for rule, (least, most) in truth.warnings.items():
        assert least <= warned[rule].cost_ns / MS <= most, rule
    infos = [finding for finding in findings if finding.severity == "info"]
    # A fix that saves nothing is no warning.
    assert sorted(finding.rule for finding in infos if finding.cost_ns == 0) == sorted(truth.infos)
    costly = [finding for finding in infos if finding.cost_ns]
    assert all(finding.saving is not None and finding.saving.saved_ns < 0.1 * finding.cost_ns for finding in costly)


@EACH
def test_costs_count_no_time_twice(recording: Path) -> None:
    analysis = analysis_of(recording)
    for device in analysis.devices:
        mine = [f for f in find_all([analysis], replayed=False) if f.device == device.result.device]
        copies_and_idle = {"slow-link", "exposed-comm", "streams-without-overlap"}
        buckets = device.result.buckets
        spent = sum(f.cost_ns for f in mine if f.rule not in copies_and_idle)
        lead_in = device.result.exposed_copy_by_cause["lead-in"] + device.result.idle_by_cause["lead-in"]
        assert spent <= buckets.exposed_copy_ns + buckets.idle_ns - lead_in


@EACH
def test_a_rule_that_is_not_concerned_finds_nothing(recording: Path) -> None:
    analysis = analysis_of(recording)
    for claims in (share_out(analysis, device) for device in analysis.devices):
        assert [id for id in RULES if not claims.concern(id) and [*RULES[id].check(claims)]] == []


@EACH
def test_pieces_add_up_to_the_causes(recording: Path) -> None:
    analysis = analysis_of(recording)
    for device in analysis.devices:
        pieces = share_out(analysis, device).pieces
        result = device.result
        judged = [result.steps[number] for number in judged_steps(result)]
        judged = judged or ([result.judged] if result.judged is not None else [])
        for causes, of_subject, field in (
            (COPY_CAUSES, pieces.copy >= 0, "exposed_copy_by_cause"),
            (OTHER_CAUSES, (pieces.copy < 0) & (pieces.gap < 0), "exposed_other_by_cause"),
            (IDLE_CAUSES, pieces.gap >= 0, "idle_by_cause"),
        ):
            for number, cause in enumerate(causes):
                if cause != "lead-in":
                    mine = of_subject & (pieces.cause == number)
                    total = sum(getattr(period, field)[cause] for period in judged)
                    assert int(pieces.length_ns[mine].sum()) == total


@pytest.mark.parametrize(
    "recording", ["same_stream", "late_issue", "item_every_step", "healthy_prefetch_running_ahead"]
)
def test_the_steps_costs_add_up_to_no_more_than_the_whole(recording: str) -> None:
    analysis = analysed(f"known_causes/{recording}")
    whole = warnings(find_all([analysis]))
    (device,) = analysis.devices
    parts = dict.fromkeys(whole, 0)
    for step in (device.result.steps[number] for number in judged_steps(device.result)):
        for rule, finding in warnings(find_all([analyze_trace(analysis.trace, step=step.name)])).items():
            assert finding.cost_ns <= step.buckets.exposed_copy_ns + step.buckets.idle_ns
            parts[rule] = parts.get(rule, 0) + finding.cost_ns
    for rule, finding in whole.items():
        # Ops before the first step belong to no step: one copy of four.
        assert 0.7 * finding.cost_ns < parts[rule] <= finding.cost_ns


def test_a_range_that_recurs_is_judged_in_its_windows_alone() -> None:
    trace = analysed("known_causes/item_every_step").trace
    (device,) = analyze_trace(trace, range="read loss").devices
    windows = judged_windows(device)
    assert len(windows.starts) > 1
    assert int((windows.ends - windows.starts).sum()) == device.result.span_ns
    assert share_out(analyze_trace(trace, range="read loss"), device).judged_ns == device.result.span_ns


def test_the_line_of_a_synchronize_is_named() -> None:
    finding = warnings(find_all([analysed("known_causes/item_every_step_stacks")]))["host-sync"]
    assert finding.where is not None
    assert finding.where.call == "cudaStreamSynchronize"
    assert finding.where.line is not None
    assert finding.where.line.startswith("known_causes.py:")
    assert finding.where.line in finding.detail


def test_a_pipeline_on_one_stream_says_what_cannot_be_hidden() -> None:
    finding = warnings(find_all([analysed("pipeline_1stream")]))["same-stream"]
    assert "cannot be hidden in any order" in finding.detail


def test_findings_come_costliest_first_and_good_news_last() -> None:
    findings = find_all([analysis_of(recording) for recording in various()[:4]])
    costs = [finding.cost_ns / max(1, finding.steps) for finding in findings if finding.severity != "info"]
    assert costs == sorted(costs, reverse=True)
    news = [finding.severity == "info" for finding in findings]
    assert news == sorted(news)


# -- made-up traces -------------------------------------------------------------------------------


def test_a_copy_far_slower_than_its_equals_is_a_slow_link() -> None:
    finding = findings_of(uploads([0.3, 0.3, 0.3, 0.3, 2.0]))["slow-link"]
    # 2.0 ms where 0.3 ms would do, all of it exposed.
    assert finding.cost_ns == pytest.approx(1.7 * MS, rel=1e-3)
    assert "8.4 GB/s" in finding.detail
    assert "55.9 GB/s" in finding.detail


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(uploads([0.3, 0.3, 0.33, 0.3, 0.36]), id="a-little-slower"),
        pytest.param(uploads([0.3, 0.3, 0.3, 0.3, 2.0], memory=Memory.PAGEABLE), id="pageable"),
        pytest.param(uploads([0.3, 0.3, 0.3, 0.3, 2.0], memory=Memory.MANAGED), id="managed"),
        pytest.param(uploads([0.3, 0.3, 0.3, 0.3, 2.0], beside=Kind.D2H), id="beside-the-other-direction"),
        pytest.param(uploads([0.3, 0.3, 0.3, 0.3, 2.0], beside=Kind.H2D), id="beside-the-same-direction"),
        pytest.param(uploads([0.3, 0.3, 0.3, 0.3, 2.0], beside_compute=True), id="hidden"),
        pytest.param(uploads([0.3, 2.0]), id="too-few-to-compare"),
        pytest.param(uploads([0.3, 0.3, 0.3, 0.3, 2.0], size=MIB // 2), id="small"),
        pytest.param(uploads([0.3, 0.3, 0.3, 0.3, 2.0], size=-1), id="sizes-unknown"),
    ],
)
def test_no_slow_link(trace: Trace) -> None:
    assert "slow-link" not in findings_of(trace)


@pytest.mark.parametrize(
    ("memory", "blocks", "fix"),
    [
        (Memory.PAGEABLE, True, ("batch-copies", "pin", "non-blocking")),
        (Memory.PAGEABLE, False, ("batch-copies", "pin")),
        (Memory.PINNED, False, ("batch-copies",)),
    ],
)
def test_tiny_copies_of_ordinary_memory_are_to_be_joined_in_pinned_memory(
    memory: Memory, blocks: bool, fix: tuple[str, ...]
) -> None:
    ops, calls, cpu_ops = [], [], []
    for step in range(0, 20 * MS, 4 * MS):
        starts = range(step, step + 2560 * US, 40 * US)
        ops += [
            Op(Kind.H2D, at + 20 * US, at + 22 * US, 7, (at, at + 19 * US), source=memory, size=8192) for at in starts
        ]
        cpu_ops += [Host("aten::copy_", at, at + 35 * US) for at in starts]
        calls += [Host("cudaStreamSynchronize", at + 20 * US, at + 30 * US) for at in starts if blocks]
        ops.append(Op(Kind.COMPUTE, step + 3 * MS, step + 4 * MS - US, launch=(step + 2900 * US, step + 2910 * US)))
    notes = [Host(f"ProfilerStep#{n}", n * 4 * MS, (n + 1) * 4 * MS) for n in range(5)]
    # The rate of the link is known for this GPU.
    trace = make_trace(ops, calls=calls, cpu_ops=cpu_ops, annotations=notes, device_names={0: "NVIDIA H200"})
    saving = findings_of(trace)["tiny-copies"].saving
    assert saving is not None and saving.fix == fix


def test_values_read_back_one_by_one_are_host_sync_and_not_tiny_copies() -> None:
    findings = findings_of(scalars(100))
    assert "tiny-copies" not in findings
    # 99 gaps of 100 us.
    assert findings["host-sync"].cost_ns == pytest.approx(9.9 * MS, rel=0.1)


@pytest.mark.parametrize(
    ("memory", "rule"),
    [
        (Memory.PINNED, "blocking-copy"),
        (Memory.UNKNOWN, "blocking-copy"),
        (Memory.PAGEABLE, "pageable-memory"),
    ],
)
def test_a_copy_that_waits_for_itself(memory: Memory, rule: str) -> None:
    findings = findings_of(blocking_uploads(memory))
    assert "host-sync" not in findings
    # Three copies of 2 ms, and up to 60 us of launching around each.
    assert 6 * MS <= findings[rule].cost_ns <= 6.2 * MS


@pytest.mark.parametrize(
    "trace", [blocking_uploads(Memory.PINNED, cpu_ops=False), blocking_uploads(Memory.PINNED, op="aten::x")]
)
def test_a_wait_that_is_not_the_copys_own_is_host_sync(trace: Trace) -> None:
    findings = findings_of(trace)
    assert "blocking-copy" not in findings
    assert 6 * MS <= findings["host-sync"].cost_ns <= 6.2 * MS


def test_event_waits_between_compute_streams_are_a_warning() -> None:
    finding = findings_of(two_streams(waits=True))["streams-without-overlap"]
    assert finding.severity == "warning"
    assert finding.title.startswith("Event waits")
    # Half of the kernels could run beside the other half.
    assert finding.cost_ns == pytest.approx(10 * MS, rel=0.01)


def test_kernels_that_fill_the_gpu_are_no_warning() -> None:
    finding = findings_of(two_streams(waits=False))["streams-without-overlap"]
    assert (finding.severity, finding.cost_ns) == ("info", 0)
    assert "fills the GPU" in finding.title


def test_a_stream_that_ran_nothing_is_one_without_work() -> None:
    ops = [Op(Kind.COMPUTE, at * MS, (at + 1) * MS, launch=(at * MS - 2, at * MS - 1)) for at in range(1, 5)]
    trace = make_trace(ops, waits=[Wait(MS, 22), Wait(2 * MS, 22)])
    assert findings_of(trace)["stream-without-work"].title == "Stream 22 takes part in 2 event waits but ran no work"


def test_streams_that_run_side_by_side_are_left_alone() -> None:
    assert "streams-without-overlap" not in findings_of(two_streams(waits=False, beside=True))


def test_exposed_communication_costs_what_outlasts_compute() -> None:
    finding = findings_of(collective(2.0))["exposed-comm"]
    assert finding.cost_ns == 2 * MS
    assert "ncclDevKernel_AllReduce" in finding.detail


def test_a_cost_below_one_percent_is_silent() -> None:
    assert not findings_of(collective(0.09))


def test_a_hostile_name_stays_on_one_line() -> None:
    finding = findings_of(collective(2.0, name="nccl\nKernel\x1b[31m" + "x" * 500))["exposed-comm"]
    assert "\n" not in finding.detail
    assert "\x1b" not in finding.detail
    assert len(finding.detail) < 600


@pytest.mark.parametrize("both_streams", [False, True])
def test_directions_that_take_turns(both_streams: bool) -> None:
    finding = findings_of(in_turns(both_streams=both_streams))["one-way-copies"]
    # Five downloads of 2 ms could run beside the uploads.
    assert finding.cost_ns == pytest.approx(10 * MS, rel=0.02)


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(in_turns(at_once=True), id="both-at-once"),
        pytest.param(in_turns(turns=1), id="load-then-store"),
    ],
)
def test_directions_that_need_not_change(trace: Trace) -> None:
    assert "one-way-copies" not in findings_of(trace)


def test_filling_pinned_memory_counts_as_pinning_and_other_cpu_work_does_not() -> None:
    ops = [Op(Kind.COMPUTE, start, start + MS, launch=(start - 10 * US, start - 5 * US)) for start in (0, 6 * MS)]
    cpu_ops = [Host("aten::pin_memory", 2 * MS, 4 * MS), Host("aten::copy_", 2 * MS, 3 * MS)]
    findings = findings_of(make_trace(ops, cpu_ops=cpu_ops))
    assert findings["pin-in-loop"].cost_ns == 2 * MS
    assert findings["python"].cost_ns == pytest.approx(3 * MS, rel=0.01)


def test_the_lead_in_costs_nothing() -> None:
    ops = [
        Op(Kind.H2D, 0, 5 * MS, stream=20, correlation=1),
        Op(Kind.COMPUTE, 5 * MS, 6 * MS, correlation=2),
        Op(Kind.COMPUTE, 6 * MS, 9 * MS, launch=(MS, 2 * MS)),
    ]
    assert not findings_of(make_trace(ops))


def test_a_trace_without_launches_syncs_or_stacks_is_not_an_error() -> None:
    ops = [
        Op(Kind.H2D, 0, 5 * MS, stream=20, source=Memory.UNKNOWN, target=Memory.UNKNOWN),
        Op(Kind.COMPUTE, 5 * MS, 6 * MS),
        Op(Kind.COMM, 6 * MS, 9 * MS, stream=-1),
        Op(Kind.D2H, 9 * MS, 9 * MS, stream=20),
    ]
    assert set(findings_of(make_trace(ops))) <= {"exposed-comm", "same-stream", "overlap-achieved"}


# -- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_explains_itself(rule: str) -> None:
    words, programs = explanation(rule), examples(rule)
    for text in (words.summary, words.meaning, words.computation):
        assert text and "\n" not in text
    for advice in words.advice.values():
        first, _, how = advice.partition("\n")
        assert first.endswith((".", ":")) and "\n" not in how
    assert programs[0] != programs[1]
    for program in programs:
        compile(program, rule, "exec")
        assert program.startswith("import torch\n")


def test_explanations_state_the_limits_of_their_rules() -> None:
    for rule, limit in (
        ("one-way-copies", f"less than {copies.AT_ONCE:.0%} of the shorter one"),
        ("overlap-achieved", f"an overlap efficiency of {copies.GOOD_PCT:.0f}% or more"),
        ("slow-link", f"at least {size(LARGE_BYTES)},"),
        ("slow-link", f"below {copies.SLOW_COPY_SHARE:.0%} of the class's best"),
        ("stream-without-work", f"at least {compute_streams.MIN_WAITS} times"),
        ("stream-without-work", f"less than {compute_streams.MIN_BUSY_SHARE:.1%} of the span"),
        ("streams-without-overlap", f"{compute_streams.SUBSTANTIAL:.0%} of the compute each"),
        ("tiny-copies", f"at least {MIN_TINY_COPIES} copies below {size(TINY_BYTES)}"),
    ):
        assert limit in explanation(rule).computation
    assert f"At {size(TINY_BYTES)} that is" in explanation("tiny-copies").meaning


def test_nothing_is_explained_but_rules() -> None:
    folder = Path(rules.__file__).parent
    assert sorted(path.stem for path in (folder / "explained").glob("*.toml")) == list(RULES)
    names = {f"{rule.replace('-', '_')}_{word}.py" for rule in RULES for word in ("wrong", "right")}
    assert {path.name for path in (folder / "examples").glob("*.py")} == names


def test_rules_are_all_that_their_files_have() -> None:
    files = {path.stem for path in Path(rules.__file__).parent.glob("[a-z]*.py")} - {
        "explained",
        "finding",
        "findings",
        "rule",
    }
    assert {RULES.module(id).rpartition(".")[2] for id in RULES} == files
    assert list(RULES) == sorted(rule.id for rule in RULES.values())


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 us"),
        (412_300, "412 us"),
        (999_499, "999 us"),
        (999_500, "1.00 ms"),
        (9_690_000, "9.69 ms"),
        (43_070_000, "43.1 ms"),
        (2_500_000_000, "2.50 s"),
        (1_234_000_000_000, "1234 s"),
    ],
)
def test_durations_have_three_digits_and_a_unit(ns: int, text: str) -> None:
    assert duration(ns) == text


def test_sizes_counts_lists_and_names() -> None:
    assert [size(n) for n in (4, 4000, 128 << 20)] == ["4 B", "4 kB", "134 MB"]
    assert [plural(n, "copy") for n in (0, 1, 2000)] == ["0 copies", "1 copy", "2,000 copies"]
    assert [listed(words) for words in ([], [1], [1, 2], [1, 2, 3])] == ["", "1", "1 and 2", "1, 2 and 3"]
    assert listed("abcd", 2) == "a, b and 2 more"
    assert name("a\nb  c\x1b") == "a b c"
    assert len(name("x" * 1000)) == 90


# -- costs are of time that there is


@given(
    ops=gpu_ops(),
    size=st.sampled_from((1, 1 << 10, 1 << 30)),
    calls=host_events("cudaDeviceSynchronize", "cudaMalloc", "cudaHostAlloc"),
    cpu_ops=host_events("aten::copy_", "aten::pin_memory", "enumerate(DataLoader)#_next"),
)
def test_no_finding_costs_more_than_all_the_time_there_is(
    ops: list[Op], size: int, calls: list[Host], cpu_ops: list[Host]
) -> None:
    # Huge sizes too: a rule's sums must hold for any size.
    ops = [op._replace(size=op.size * size) for op in ops]
    analysis = analyze_trace(make_trace(ops, calls=calls, cpu_ops=cpu_ops))
    spans = {device.result.device: device.result.span_ns for device in analysis.devices}
    for finding in find_all([analysis]):
        assert 0 <= finding.cost_ns <= spans[finding.device], finding
        saving = finding.saving
        assert (
            saving is None or saving.saved_low_ns <= saving.saved_ns <= saving.saved_high_ns <= spans[finding.device]
        ), finding


@EACH
def test_titles_state_the_cost_and_places_count_no_call_of_another_step(recording: Path) -> None:
    for finding in find_all([analysis_of(recording)], replayed=False):
        if finding.cost_ns:
            assert duration(finding.cost_ns / max(1, finding.steps)) in finding.title
        copies = re.match(r"([\d.,]+) (?:copy|copies)\b.* used pageable host memory", finding.detail)
        places = re.findall(r"\(([\d.,]+) times?\) (?=cudaMemcpyAsync)", finding.detail)
        assert not copies or sum(map(float, places)) <= float(copies[1])


def test_a_rule_that_claims_more_than_the_span_is_held_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = analyze_trace(make_trace([Op(Kind.COMPUTE, 0, 100, launch=(0, 1))]))
    claim = Draft(title="t", detail="d", advice="a", bound_ns=10**6)
    rule = replace(RULES["slow-link"], check=lambda *_: iter([claim]), fixes=())
    monkeypatch.setattr("overlapscope.rules.findings.RULES", {rule.id: rule})
    [finding] = find_all([analysis])
    assert finding.cost_ns == 100
