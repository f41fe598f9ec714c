"""Tests of the command line: exit codes, formats, files, and messages about bad input."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from overlapscope.base.words import parse_span
from overlapscope.commands import commands, groups, main
from overlapscope.commands._options import parse_size
from overlapscope.plugin import built_in
from overlapscope.rules import RULES
from overlapscope.version import __version__
from tests.support.schemas import validate

DATA = Path("traces")
PIPELINE = str(DATA / "pipeline_1stream.json.gz")
GPT2 = str(DATA / "gpt2_train.json.gz")
DDP = str(DATA / "ddp")
HOSTILE = "a\x1b[31mRED\x1b]0;t\x07[bold]b[/bold]|p|`t`<script>x</script>\n# h\r\u202e@you http://x.y"


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def event(category: str, name: str, start: float, duration: float, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": start,
        "dur": duration,
        "pid": 1,
        "tid": 1,
        "args": args,
    }


def write_trace(path: Path, events: list[dict[str, Any]], device: str = "GPU") -> str:
    content = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": device}], "traceEvents": events}
    path.write_text(json.dumps(content))
    return str(path)


@pytest.fixture
def cpu_only(tmp_path: Path) -> str:
    return write_trace(tmp_path / "cpu.json", [event("cpu_op", "aten::mm", 1000, 10)])


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    events = [event("user_annotation", HOSTILE, 990, 900)]
    for number in range(10):
        at, copy, kernel, sync = 1000.0 + 100 * number, 3 * number + 1, 3 * number + 2, 3 * number + 3
        place = {"device": 0, "stream": 7}
        events += [
            event("cpu_op", HOSTILE, at, 95),
            event("cuda_runtime", "cudaMemcpyAsync", at + 1, 5, correlation=copy),
            event(
                "gpu_memcpy",
                "Memcpy HtoD (Pageable -> Device)",
                at + 20,
                50,
                correlation=copy,
                bytes=10**6,
                **place,
            ),
            event("cuda_runtime", "cudaLaunchKernel", at + 7, 2, correlation=kernel),
            event("kernel", HOSTILE, at + 75, 15, correlation=kernel, **place),
            event("cuda_runtime", "cudaStreamSynchronize", at + 10, 82, correlation=sync),
        ]
    return write_trace(tmp_path / "x\x1b[31m|`.json", events, device=HOSTILE)


def listed(out: str) -> dict[str, str]:
    """Return the commands that a help text lists, with their summaries."""
    return dict(re.findall(r"^  (\w+) +(\S.*)$", out, re.MULTILINE))


def test_help_lists_commands_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    titles = [title for title in groups() if title]
    assert listed(out) == {name: summary for title in titles for name, summary in groups()[title].items()}
    assert re.findall(r"^(\w.*):$", out, re.MULTILINE) == ["Options", *titles]
    assert main(["--help-all"]) == 0
    assert listed(capsys.readouterr().out) == commands()


def test_without_arguments_four_commands_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    shown = re.findall(r"^  overlapscope (\w+) ", captured.err, re.MULTILINE)
    assert captured.out == "" and shown == ["run", "analyze", "dashboard", "check"]
    assert max(map(len, captured.err.splitlines())) <= 80


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("run", {"--wait", "--active", "--steps-by", "--stacks", "--open", "--output", "--force"}),
        ("analyze", {"--format", "--output", "--force", "--device", "--step", "--range", "--verbose"}),
    ],
)
def test_help_shows_the_options_that_people_need(
    command: str, shown: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    short = capsys.readouterr().out
    options = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", short, re.MULTILINE))
    of_plugins = {plugin.run.flag for plugin in built_in() if plugin.run and command == "run"}
    assert options - {"--help", "--help-all"} == shown | of_plugins
    assert main([command, "--help-all"]) == 0
    everything = capsys.readouterr().out
    assert len(everything) > len(short) and "--max-size" in everything


@pytest.mark.parametrize("command", commands())
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"overlapscope {command}" in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["80", "100", "100000000000"])
def test_help_is_laid_out_in_the_width_of_the_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["diff", "--help"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert re.findall(r"^([A-Z][\w ]*):", out, re.MULTILINE) == ["Usage", "Positional arguments", "Options"]
    assert "\n  -o, --output FILE     write to FILE instead of stdout\n" in out


def test_a_script_in_the_place_of_a_command_is_taken_to_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train.py", "--lr", "0.1"]) == 2
    assert "to run it, use `overlapscope run train.py --lr 0.1`." in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"overlapscope {__version__}\n"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "overlapscope run train.py"),
        (["analyse"], "did you mean 'analyze'?"),
        (["analyze"], "required: TRACE"),
        (["analyze", PIPELINE, "--format", "pdf"], "invalid choice: 'pdf'"),
        (["analyze", PIPELINE, "--max-size", "10XB"], "'10XB' is not a size"),
        (["analyze", PIPELINE, "--step", "3", "--range", "x"], "not allowed with"),
        (["analyze", "nothing/there.json"], "nothing/there.json"),
        (["analyze", PIPELINE, "--max-size", "10kB"], "--max-size"),
        (["analyze", PIPELINE, "--step", "9"], "there is no step 9; steps: 3 to 6."),
        (["analyze", GPT2, "--range", "Optimizer.step"], "did you mean 'Optimizer.step#AdamW.step'?"),
        (["analyze", PIPELINE, "--device", "3"], "devices that did anything: 0."),
        (["explain", "pageabl"], "no report uses the word 'pageabl' (did you mean 'pageable'?)"),
    ],
)
def test_wrong_usage_is_reported_in_a_sentence_and_exits_2(
    args: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in " ".join(captured.err.split())
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("content", [b"", b"hello", b"{}", b"PK\x03\x04", b'{"traceEvents": 5}'])
def test_a_file_that_is_not_a_trace_is_reported_by_name(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    code = main(["analyze", str(path)])
    captured = capsys.readouterr()
    assert code == 2
    assert str(path) in captured.err
    assert captured.err.count("\n") == 1


def test_terminal_report_has_all_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", PIPELINE]) == 0
    out = capsys.readouterr().out
    assert out.startswith("pipeline_1stream.json.gz, NVIDIA H200: Copy-bound: in each step of 29.5 ms,")
    for part in (
        "stream 7",
        "Findings",
        f"overlapscope whatif {PIPELINE} --",
        "where a step goes",
        "copy: no-compute",
    ):
        assert part in out
    assert out.splitlines()[-1].startswith("Add -v for evidence, ")
    assert "\x1b" not in out
    assert main(["analyze", PIPELINE, "--verbose"]) == 0
    verbose = capsys.readouterr().out
    assert "Add -v" not in verbose
    for part in (
        "overlap efficiency",
        "exposed copy by cause",
        "idle by cause",
        "host stall",
        "file-complete",
        "ProfilerStep#3",
    ):
        assert part in verbose and part not in out


def test_json_is_pure_and_matches_the_published_schema(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsysbinary.readouterr().out)
    assert main(["analyze", PIPELINE, DDP, "--format", "json"]) == 0
    report = json.loads(capsysbinary.readouterr().out)
    validate(report, schema)
    assert [trace["rank"] for trace in report["traces"]] == [None, 0, 1]


def test_markdown_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", PIPELINE, "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# overlapscope report\n\n## pipeline\\_1stream.json.gz, NVIDIA H200\n\n**Poor.** ")
    assert "| copy: no-compute | 16.36 | 55.5 |" in out
    assert main(["analyze", PIPELINE, "--format", "markdown", "-v"]) == 0
    assert "| no-compute | 16.36 | 72.9 |" in capsys.readouterr().out
    assert "```text\nstream 7 " in out


def test_several_ranks_begin_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", DDP]) == 0
    head, _, rest = capsys.readouterr().out.partition("\n\n")
    assert [line.split()[0] for line in head.splitlines()] == ["trace", "rank0", "rank1"]
    assert "rank0.json.gz, rank 0" in rest and "rank1.json.gz, rank 1" in rest


def test_a_device_of_one_rank_leaves_the_others_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", DDP, "--device", "1", "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert [trace["rank"] for trace in json.loads(captured.out)["traces"]] == [1]
    assert captured.err.startswith("Left out: ") and "rank0.json.gz: there is no device 1" in captured.err


@pytest.mark.parametrize("step", ["4", "ProfilerStep#4"])
def test_step_by_number_or_name(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", PIPELINE, "--format", "json"]) == 0
    whole = json.loads(capsys.readouterr().out)["traces"][0]["devices"][0]
    assert main(["analyze", PIPELINE, "--format", "json", "--step", step]) == 0
    alone = json.loads(capsys.readouterr().out)["traces"][0]["devices"][0]
    [expected] = [step for step in whole["steps"] if step["name"] == "ProfilerStep#4"]
    assert alone["buckets"] == expected["buckets"]


def test_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", GPT2, "--range", "Optimizer.step#AdamW.step"]) == 0
    out = capsys.readouterr().out
    assert "Timeline of Optimizer.step#AdamW.step (the median of 3)" in out


def test_a_trace_without_a_gpu_is_reported_plainly_and_is_not_an_error(
    cpu_only: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for format in ("text", "markdown", "json"):
        assert main(["analyze", cpu_only, "--format", format]) == 0
        assert "but has no GPU events" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("format", ["text", "markdown", "json"])
def test_output_writes_a_file_once(format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report"
    assert main(["analyze", PIPELINE, "--format", format, "--output", str(target)]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"Wrote {target}\n"
    assert b"\x1b" not in target.read_bytes()
    target.write_text("mine")
    assert main(["analyze", PIPELINE, "--format", format, "--output", str(target)]) == 2
    assert "--force" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert main(["analyze", PIPELINE, "--format", format, "--output", str(target), "--force"]) == 0
    assert target.read_text() != "mine"


def test_output_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for target in (tmp_path, tmp_path / "no" / "where"):
        assert main(["analyze", PIPELINE, "-o", str(target)]) == 2
        assert str(target) in capsys.readouterr().err


@pytest.mark.parametrize("format", ["text", "markdown"])
def test_hostile_names_do_no_harm(hostile: str, format: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", hostile, "--format", format, "--verbose"]) == 0
    out = capsys.readouterr().out
    assert all(character == "\n" or character.isprintable() for character in out)
    if format == "markdown":
        assert "<script>" not in out
    assert main(["analyze", hostile, "--step", HOSTILE]) == 2
    assert main(["analyze", hostile, "--range", HOSTILE + "?"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_each_rule_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for rule in RULES:
        assert main(["explain", rule]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"{rule} (") and "\nWrong\n" in out and "\nRight\n" in out


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("20GB", 20 * 10**9), ("1.5 GiB", 3 << 29), ("2k", 2000), ("1tb", 10**12)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "ns"), [("30s", 30 * 10**9), ("10 min", 600 * 10**9), (" 1.5h ", 5400 * 10**9), ("90d", 7776 * 10**12)]
)
def test_lengths_of_time(text: str, ns: int) -> None:
    assert parse_span(text) == ns


@pytest.mark.parametrize("text", ["", "10", "-1s", "1 year", "nan s", "1e3s", "9" * 30 + "s"])
def test_what_is_not_a_length_of_time(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 30s"):
        parse_span(text)


def test_an_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("overlapscope.reading.find_traces", interrupted)
    assert main(["analyze", PIPELINE]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has file names that are not text")
def test_a_file_name_that_is_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = os.fsencode(tmp_path) + b"/bad\xff.json.gz"
    with open(path, "wb") as file:
        file.write(Path(PIPELINE).read_bytes())
    for format in ("text", "markdown", "json"):
        assert main(["analyze", os.fsdecode(path), "--format", format]) == 0
        assert "bad\\" in capsys.readouterr().out


def test_ops_that_take_no_time_are_no_gpu_activity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [event("kernel", "k", 1000, 0, correlation=1, device=0, stream=7)]
    path = write_trace(tmp_path / "zero.json", events)
    for format in ("text", "markdown", "json"):
        assert main(["analyze", path, "--format", format]) == 0
        assert "1 GPU op without a possible time" in " ".join(capsys.readouterr().out.split())


def test_a_report_of_a_file_whose_name_is_not_text_can_be_written_in_python(tmp_path: Path) -> None:
    import overlapscope as ov
    from overlapscope.base.saved import encode
    from overlapscope.report.model import from_json

    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json.gz"))
    path.write_bytes(Path(PIPELINE).read_bytes())
    report = ov.analyze(ov.load(path))
    assert from_json(encode(report)) == report
