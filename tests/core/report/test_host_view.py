"""Sampled lines of the host in reports: in text, as a flame graph, and never where they say nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlapscope.analysis import analyze_trace
from overlapscope.commands import main
from overlapscope.report import charts, host_view
from overlapscope.report.document import host_blocks
from overlapscope.report.model import build
from overlapscope.report.page import DeviceReport, Page, SampledHost, sampled_hosts
from overlapscope.trace.host_activity import HostActivity, SampledStack, StackFrame
from overlapscope.trace.model import PlainSteps, TimedSteps
from tests.support.helpers import MS, TRACES, with_host_activity
from tests.support.recordings import trace_of

SAMPLES = Path(__file__).parents[2] / "host_samples.trace.json.gz"
GPU = TRACES / "known_causes" / "item_every_step_stacks.json.gz"
_FRAMES = (
    StackFrame("/home/me/known_causes.py", 272, "step<b>"),
    StackFrame("/home/me/known_causes.py", 27, "step"),
    StackFrame("/home/me/my_known_causes.py", 272, "step"),
    StackFrame("/home/me/rare.py", 3, "rare"),
)


def _activity(*counts: tuple[int, int], sampler: str = "py-spy 0.4.3") -> HostActivity:
    stacks = tuple(SampledStack(1, (number,), *count) for number, count in enumerate(counts))
    return HostActivity(
        thread=1, steps=10, span_ns=100_000_000, interval_ns=1, sampler=sampler, frames=_FRAMES, stacks=stacks
    )


def _sections(path: Path, activity: HostActivity) -> list[DeviceReport]:
    analysis = analyze_trace(replace(trace_of(path), host_activity=activity))
    return list(Page(build([analysis], replayed=False), sampled=sampled_hosts([analysis])).sections())


def _of(section: DeviceReport) -> SampledHost:
    assert section.host is not None
    return section.host


def test_the_table_has_the_time_of_an_average_step_and_joins_lines_below_half_a_percent() -> None:
    (section,) = _sections(GPU, _activity((600, 600), (300, 0), (96, 96), (4, 1)))
    table = host_view.table(host_view.rows(section, _of(section)), _of(section))
    assert table.read().texts() == [
        ["known_causes.py:272", "step<b>", "", "6.00", "60.0", "6.00", "0", "host-sync"],
        ["known_causes.py:27", "step", "", "3.00", "30.0", "0", "3.00", ""],
        ["my_known_causes.py:272", "step", "", "0.96", "9.6", "0.96", "0", ""],
        ["1 other line", "", "", "0.04", "0.4", "0.01", "0.03", ""],
    ]


def test_lines_are_parts_of_the_step_that_the_report_states() -> None:
    # The recorded step takes 10.8 ms on the GPU and, since the host runs ahead, 6.9 ms in the median on the host.
    before, after = (TimedSteps((ms * MS,) * 5, (ms * MS,) * 5) for ms in (12, 9))
    steps = PlainSteps(before=before, after=after)
    recording = trace_of(TRACES / "known_causes" / "pageable_memory.json.gz")
    analysis = analyze_trace(replace(recording, plain_steps=steps, host_activity=_activity((1, 1))))
    [section] = Page(build([analysis], replayed=False), sampled=sampled_hosts([analysis])).sections()
    assert section.device is not None and section.device.plain is not None
    assert _of(section).step_ns == section.device.plain.step_ns == 9 * MS
    assert section.trace.sampled is not None and section.trace.sampled.step_ns == 9 * MS


def test_the_gpus_waits_for_the_host_are_stated_and_not_claimed_of_any_line() -> None:
    (section,) = _sections(GPU, _activity((1, 1)))
    taken, waits = host_view.sentences(section, _of(section))
    assert taken == (
        "Estimated from 1 sample (py-spy 0.4.3) of the main thread in 10 steps without the profiler. "
        "A sample stands for 100% of a step of 10.0 ms."
    )
    assert section.device is not None
    idle_ns = section.device.idle_by_cause["host-sync"]
    assert re.fullmatch(r"The GPU waits for the host for \d+ us \(\d\.\d%\) of a step: host-sync\. .*", waits)
    assert f"{idle_ns / 1000:.0f} us" in waits
    assert waits.endswith("Samples don't show the GPU, so a line costs at most its time.")


def test_the_time_of_each_phase_is_stated_where_stacks_show_phases() -> None:
    frames = (
        StackFrame("/home/me/train.py", 3, "train"),
        StackFrame(r"C:\lib\torch\_tensor.py", 600, "Tensor.backward"),
        StackFrame("/lib/torch/optim/optimizer.py", 500, "wrapper"),
    )
    stacks = (SampledStack(1, (0, 1), 6, 0), SampledStack(1, (0, 2), 3, 3), SampledStack(1, (0,), 1, 1))
    activity = replace(_activity((1, 1)), frames=frames, stacks=stacks)
    (section,) = _sections(SAMPLES, activity)
    _, phases = host_view.sentences(section, _of(section))
    assert phases == "By phase of the step: backward 45.5 ms, optimizer 22.7 ms and other 7.58 ms."


def test_samples_by_a_thread_of_the_program_say_what_they_favor() -> None:
    (section,) = _sections(SAMPLES, _activity((1, 1), sampler="sys._current_frames"))
    (taken,) = host_view.sentences(section, _of(section))
    assert taken.endswith("A thread of the program took them, which favors lines that release the GIL.")


def test_nothing_is_shown_without_samples_and_only_once_for_a_process_with_several_devices() -> None:
    (section,) = _sections(GPU, HostActivity())
    assert list(host_blocks(section)) == []
    (section,) = _sections(GPU, _activity())
    assert list(host_blocks(section)) == []
    sections = _sections(TRACES / "mixed_workloads" / "model_on_two_devices.json.gz", _activity((1, 1)))
    assert [len(list(host_blocks(section))) > 0 for section in sections] == [True, False]


@pytest.mark.parametrize("dark", [False, True])
def test_the_flame_graph_has_every_part_inside_its_caller_and_names_as_text(dark: bool) -> None:
    (section,) = _sections(GPU, _activity((600, 600), (400, 0)))
    (data,) = charts.flame_graph(_of(section), dark)["data"]
    assert data["values"] == [1000, 600, 400]
    assert data["parents"] == ["", "0", "0"]
    assert data["labels"][:2] == ["step", "step&lt;b&gt; (known_causes.py:272)"]
    assert data["marker"]["pattern"]["shape"] == ["", "", "/"]
    assert data["customdata"][2].endswith("4.00 ms a step (40.0%), 4.00 ms of it asleep")


def test_the_flame_graph_leaves_out_functions_that_only_call_another() -> None:
    (section,) = _sections(GPU, _activity((600, 600), (400, 0)))
    host = _of(section)
    torch = "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py"
    frames = (*host.activity.frames, StackFrame(torch, 1775, "Module._call_impl"))
    stack = SampledStack(host.activity.thread, (0, len(frames) - 1), 500, 500)
    host = replace(host, activity=replace(host.activity, frames=frames, stacks=(*host.activity.stacks, stack)))
    (data,) = charts.flame_graph(host, False)["data"]
    assert "Module._call_impl" not in data["labels"] and data["values"][0] == 1500


def test_the_flame_graph_shows_the_code_of_the_users_lines_as_text() -> None:
    (section,) = _sections(GPU, _activity((600, 600), (400, 0)))
    (data,) = charts.flame_graph(_of(section), False, source=lambda part: f"<code of {part.function}>")["data"]
    shown = ["&lt;code of " in text for text in data["customdata"]]
    assert shown[1] and any(shown) and not all(shown)


def test_the_terminal_shows_the_lines_once(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["analyze", str(SAMPLES)]) == 0
    (line,) = re.findall(r"\ntrain\.py:14 .*", capsysbinary.readouterr().out.decode())
    assert re.fullmatch(r"\ntrain\.py:14 +tokenize +43\.70 +57\.6 +36\.75 +6\.95", line)


def test_the_terminal_shows_the_lines_of_a_program_on_a_gpu_with_v(
    capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    trace = str(with_host_activity(GPU, tmp_path / "gpu.json.gz", _activity((1, 1))))
    assert main(["analyze", trace]) == 0
    brief = capsysbinary.readouterr().out.decode()
    assert re.search(r"Add -v for [^.]*lines", brief) and "Lines of a step" not in brief
    assert main(["analyze", "-v", trace]) == 0
    assert re.search(r"known_causes\.py:272 +step<b>", capsysbinary.readouterr().out.decode())
