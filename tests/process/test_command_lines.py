"""Tests of odd command lines, files and streams: each gives the documented exit code and no traceback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from overlapscope.commands import DEFECT, commands, main
from tests.support.helpers import TRACES, in_turn

GOOD = TRACES / "known_causes" / "healthy_prefetch.json.gz"
BAD = TRACES / "known_causes" / "same_stream.json.gz"
NINES = "9" * 400
DEEP = "[" * 100_000
SURROGATE = os.fsdecode(b"na\xffme")
_COPIES = ("count", "bytes", "duration_ns", "time_ns", "exposed_ns")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory of usual and unusual files, the working directory of every command here."""
    place = tmp_path_factory.mktemp("place")
    shutil.copy(GOOD, place / "good.json.gz")
    shutil.copy(BAD, place / "bad.json.gz")
    (place / "overlapscope.toml").touch()
    for name in ("full", "none", "dir.json"):
        (place / name).mkdir()
    shutil.copy(GOOD, place / "full" / "rank0.json.gz")
    (place / "loop").symlink_to("loop")
    (place / "dangling").symlink_to("nowhere")
    (place / SURROGATE).write_bytes(GOOD.read_bytes())
    (place / "text.txt").write_text("hello")
    (place / "empty.json").touch()
    (place / "gone.json.gz").write_bytes(GOOD.read_bytes()[:100])
    (place / "deep.toml").write_text(f"a = {'[' * 5000}")
    (place / "wide.toml").write_text(f"skip_steps = {'9' * 5000}")
    (place / "steps.toml").write_text(f"skip_steps = {NINES}\n[budgets]\nidle_pct = {{ max = 50 }}")
    (place / "inf.toml").write_text("[budgets]\nidle_pct = { max = inf }")
    (place / "nan.toml").write_text("[budgets]\nidle_pct = { max = nan }")
    (place / "far.toml").write_text(f"[budgets]\nstep_time = {{ max = '{NINES} ms' }}")
    (place / "latin.toml").write_bytes(b'name = "\xff"')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["analyze", "bad.json.gz", "--format", "json", "-o", "report.json"]) == 0
        assert main(["check", "good.json.gz", "--write-baseline", "--baseline", "baseline.json"]) == 0
        assert main(["ranks", "full", "--format", "json", "-o", "ranks.json", "--workers", "1"]) == 0
        _absurd_reports(place)
        yield place


def _absurd_reports(place: Path) -> None:
    def changed(name: str, change: Callable[[dict[str, Any]], object]) -> None:
        report = json.loads((place / "report.json").read_text())
        change(report)
        (place / name).write_text(json.dumps(report))

    changed("r-none.json", lambda report: report.update(traces=[]))
    changed("r-efficiency.json", lambda report: _device(report)["overlap"].update(efficiency_pct=1e308))
    changed("r-nan.json", lambda report: _device(report)["overlap"].update(efficiency_pct=float("nan")))
    changed("r-negative.json", lambda report: _device(report)["buckets"].update(idle_ns=-1))
    changed("r-large.json", lambda report: _device(report).update(span_ns=10**30))
    changed("r-larger.json", lambda report: _device(report).update(span_ns=10**4000))
    changed("r-text.json", lambda report: _device(report).update(span_ns="long"))
    changed("r-nested.json", lambda report: _device(report).update(buckets=[[]]))
    changed("r-short.json", lambda report: _device(report)["copies"][0]["by_step"].update(bytes=[]))
    changed("r-uncounted.json", lambda report: _device(report)["evidence"][0]["by_step"].update(count=[]))
    changed("r-emptied.json", lambda report: _device(report)["copies"][0].update(by_step=dict.fromkeys(_COPIES, ())))
    changed("r-version.json", lambda report: report.update(schema_version=99))
    (place / "r-deep.json").write_text('{"kind": "report", "traces": ' + DEEP)
    (place / "r-surrogate.json").write_bytes(b'{"kind": "report", "traces": "\\ud800"}')
    (place / "r-bytes.json").write_bytes(b'{"kind": "report", "traces": "\xff"}')
    (place / "b-deep.json").write_text('{"kind": "baseline", "devices": ' + DEEP)
    (place / "b-none.json").write_text('{"kind": "baseline", "devices": []}')
    (place / "k-deep.json").write_text('{"kind": "ranks", "world_size": ' + DEEP)
    (place / "c-deep.json").write_text('{"constants": ' + DEEP)


def _device(report: dict[str, Any]) -> dict[str, Any]:
    device: dict[str, Any] = report["traces"][0]["devices"][0]
    return device


LINES: list[tuple[int, str]] = [
    # No command, and unknown commands.
    (2, ""),
    (2, "--nonsense"),
    (2, "chek good.json.gz"),
    (2, "-"),
    (2, "--"),
    (2, "''"),
    (2, "\0"),
    (2, SURROGATE),
    (0, "--version"),
    (0, "--help"),
    (0, "--help-all"),
    *((0, f"{command} --help") for command in commands()),
    *((2, f"{command} --nonsense") for command in commands() if command != "dashboard"),
    # Traces.
    (0, "analyze good.json.gz"),
    (0, "analyze ./good.json.gz good.json.gz"),
    (0, f"analyze {SURROGATE}"),
    (0, f"analyze {SURROGATE} --format json"),
    (0, f"check {SURROGATE}"),
    (2, "analyze"),
    (2, "analyze nothing.json"),
    (2, "analyze ''"),
    (2, "analyze loop"),
    (2, "analyze dangling"),
    (2, "analyze loop/x.json"),
    (2, "analyze good.json.gz/x.json"),
    (2, f"analyze {'n' * 300}.json"),
    (2, f"analyze {'d/' * 3000}x.json"),
    (2, "analyze a\0b.json"),
    (2, "analyze none"),
    (2, "analyze dir.json"),
    (2, "analyze text.txt"),
    (2, "analyze empty.json"),
    (2, "analyze /proc/self/mem"),
    (2, "analyze http://example.invalid/x.json"),
    (2, "analyze *.nothing"),
    (2, "analyze [ [! **["),
    (2, "analyze good.json.gz --device 7"),
    (2, f"analyze good.json.gz --device {NINES}"),
    (2, "analyze good.json.gz --device x"),
    (2, "analyze good.json.gz --step 999"),
    (2, f"analyze good.json.gz --step {SURROGATE}"),
    (2, "analyze good.json.gz --range ''"),
    (2, "analyze good.json.gz --step 4 --range x"),
    (2, "analyze good.json.gz --format nonsense"),
    (2, f"analyze good.json.gz --max-size {NINES}.{NINES}TB"),
    (2, "analyze good.json.gz --max-size 0"),
    (2, "analyze good.json.gz --max-size 1"),
    (2, "analyze good.json.gz --max-size 9223372036854775808"),
    (0, "analyze good.json.gz --max-size 9223372036854775807"),
    (2, "analyze good.json.gz --plain-step 0ms"),
    (2, "analyze good.json.gz --plain-step infs"),
    (2, f"analyze good.json.gz --plain-step {NINES}ms"),
    (2, "analyze good.json.gz --step 4 --plain-step 1ms"),
    # Outputs.
    (2, "analyze good.json.gz -o none"),
    (2, "analyze good.json.gz -o good.json.gz --force"),
    (2, "analyze good.json.gz -o nowhere/x"),
    (2, "analyze good.json.gz -o loop --force"),
    (2, "analyze good.json.gz -o ''"),
    (2, "analyze good.json.gz -o a\0b"),
    (2, f"analyze good.json.gz -o {'n' * 300}"),
    (2, "analyze good.json.gz -o /dev/full"),
    (2, "analyze good.json.gz -o /proc/self/status --force"),
    (0, "analyze good.json.gz -o /dev/null"),
    (2, "schema -o /nowhere/x"),
    (2, "schema nonsense"),
    (0, "schema check"),
    # Check.
    (0, "check good.json.gz"),
    (1, "check bad.json.gz"),
    (1, "check report.json"),
    (2, "check"),
    (2, "check nothing.json"),
    (2, "check ranks.json"),
    (2, "check baseline.json"),
    *((2, f"check r-{name}.json") for name in ("none", "efficiency", "nan", "negative", "large", "larger", "text")),
    *((2, f"check r-{name}.json") for name in ("nested", "short", "uncounted", "emptied", "version")),
    *((2, f"check r-{name}.json") for name in ("deep", "surrogate", "bytes")),
    (2, "check good.json.gz --baseline b-deep.json"),
    (2, "check good.json.gz --baseline b-none.json"),
    (2, "check good.json.gz --baseline r-none.json"),
    (2, "check good.json.gz --baseline nothing.json"),
    (2, "check good.json.gz --baseline none"),
    (2, "check good.json.gz --config nothing.toml"),
    (2, "check good.json.gz --config none"),
    *((2, f"check good.json.gz --config {name}.toml") for name in ("deep", "wide", "inf", "nan", "far", "latin")),
    (3, "check good.json.gz --config steps.toml"),
    (2, "check good.json.gz --config text.txt"),
    (2, "check good.json.gz --budget ''"),
    (2, "check good.json.gz --budget step_time<=nan"),
    (2, f"check good.json.gz --budget step_time<={NINES}ms"),
    (2, f"check good.json.gz --budget idle_pct<={NINES}"),
    (2, f"check good.json.gz --budget {SURROGATE}"),
    (2, "check good.json.gz --budget p999999999999 step_time<=1ms"),
    (2, f"check good.json.gz --forbid {SURROGATE}"),
    (2, f"check good.json.gz --explain {SURROGATE}"),
    (2, "check good.json.gz --format nonsense"),
    (2, "check good.json.gz --format json:"),
    (2, "check good.json.gz --format json:a\0b"),
    (2, "check good.json.gz --format json --format text"),
    (2, "check good.json.gz --format json:x --format text:x"),
    (2, "check good.json.gz --format json:none"),
    (2, "check good.json.gz --format json:loop"),
    # The others.
    (2, "diff good.json.gz"),
    (2, "diff good.json.gz nothing.json"),
    (2, "diff good.json.gz r-none.json"),
    (2, "diff r-large.json good.json.gz"),
    (0, "diff good.json.gz good.json.gz"),
    (2, "diff good.json.gz good.json.gz --plain-step 1ms"),
    (2, "check --write-baseline"),
    (2, "check good.json.gz --write-baseline --baseline baseline.json"),
    (2, "check good.json.gz --write-baseline --baseline nowhere/b.json"),
    (3, "check good.json.gz --baseline baseline.json"),
    (2, "whatif none"),
    (2, "whatif text.txt"),
    (2, "whatif good.json.gz --no-sync nonsense"),
    (2, f"whatif good.json.gz --no-sync {SURROGATE}"),
    (2, "whatif good.json.gz --pin --best"),
    (2, "whatif good.json.gz --pin --device 7"),
    (2, "whatif good.json.gz --calibration nothing.json"),
    (2, "whatif good.json.gz --calibration c-deep.json"),
    (2, "whatif good.json.gz --calibration none"),
    (2, "ranks nothing"),
    (2, "ranks none"),
    (2, "ranks full --expect 0"),
    (2, f"ranks full --expect {NINES}"),
    (2, f"ranks full --workers {NINES}"),
    (2, "ranks full --workers ²"),
    (2, "ranks nonsense://x"),
    (2, "dashboard none"),
    (2, "dashboard nothing.json"),
    (2, "dashboard k-deep.json"),
    (2, "dashboard --port 65536"),
    (2, "dashboard --port x"),
    (2, "dashboard --no-open --host no.such.invalid"),
    (2, f"dashboard --no-open --host {SURROGATE}"),
    (2, f"dashboard --max-upload {NINES}"),
    (0, "cache info"),
    (0, "cache clear"),
    (2, "cache"),
    (0, "explain pageable-memory"),
    (2, "explain nonsense"),
    (2, f"explain {SURROGATE}"),
    (0, "samples"),
    (2, "scenarios"),
    (2, "scenarios run"),
    (2, "scenarios run nonsense"),
    (2, "scenarios run nothing.py"),
    (2, "scenarios report nothing"),
    (2, "scenarios report --results text.txt"),
    (2, f"scenarios run x --repeat {NINES}"),
    (2, "scenarios calibrate --output none"),
    (2, "scenarios calibrate --output text.txt"),
    (2, "run"),
    (2, "run none"),
    (2, f"run --active 5 --repeat {NINES} text.txt"),
    (2, f"run --max-size {NINES} text.txt"),
    (2, "run -o text.txt -f text.txt"),
    (2, "run -o nowhere/x.json text.txt"),
    (2, "run -o /dev/full text.txt"),
]


def process(
    script: str, *arguments: object, directory: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Return a shell script in which `$O` is this program."""
    return subprocess.run(
        ["sh", "-c", f'O="{sys.executable} -m overlapscope"\n{script}', "sh", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(TRACES.parent)} | variables,
    )


def words(line: str) -> list[str]:
    return [word.strip("'") for word in line.split(" ") if word]


@pytest.mark.parametrize(
    ("code", "line"), LINES, ids=[line[:60].encode("ascii", "backslashreplace").decode() for _, line in LINES]
)
def test_an_odd_command_line_has_the_exit_code_that_is_documented(
    code: int, line: str, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in place.iterdir() if path.is_file()}
    if line.startswith(("run ", "dashboard --no-open ")):
        # Made for a process that ends with it: the dashboard's thread goes on importing.
        done = process('$O "$@"', *words(line))
        assert done.returncode == code
        errors = done.stderr
    else:
        assert main(words(line)) == code
        errors = capfd.readouterr().err
    assert "Traceback" not in errors and "internal error" not in errors
    if code == 2:
        assert errors.strip()
    assert {path: path.read_bytes() for path in place.iterdir() if path.is_file()} == before


# -- unforeseen errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "error"),
    in_turn(
        ("analyze", "check", "diff", "whatif", "ranks"),
        (KeyError("x"), RecursionError(), ValueError("\x1b[31m"), AssertionError()),
    ),
)
def test_an_error_that_nobody_foresaw_is_not_a_failed_budget(
    command: str, error: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    for place in ("inputs.find_traces", "inputs.load", "ranks.files.expand", "reading.find_traces", "reading.load"):
        monkeypatch.setattr(f"overlapscope.{place}", fail)
    trace = str(GOOD)
    arguments = [trace, trace] if command == "diff" else [trace]
    assert main([command, *arguments]) == DEFECT == 70
    *traceback, last = capfd.readouterr().err.splitlines()
    assert traceback[0] == "Traceback (most recent call last):"
    assert last.startswith(f"overlapscope: internal error: {type(error).__name__}") and last.isprintable()
    assert "report this bug" in last


def test_what_the_system_refuses_is_reported_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error", "disk.json")

    monkeypatch.setattr("overlapscope.inputs.find_traces", fail)
    assert main(["check", str(GOOD)]) == 2
    assert capfd.readouterr().err == "overlapscope: error: disk.json: Input/output error.\n"


# -- streams, variables and directories -----------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "script"),
    [
        (2, "$O check $1 >&-"),
        (2, "$O check $1 >/dev/full"),
        (0, "$O check $1 2>&-"),
        (1, "$O check $2 2>/dev/full"),
        (0, "$O check $1 <&-"),
        (0, "$O check $1 --format json:check.json >&-"),
        (0, "$O check $1 --format json:check.json <&- >&- 2>&-"),
        (2, "$O check nothing.json 2>&-"),
        (2, "$O check nothing.json >&- 2>&-"),
        (2, "$O check --nonsense 2>&-"),
        (2, "$O --help >/dev/full"),
        (2, "$O schema >&-"),
        (0, "$O analyze $1 -o report.txt >&- 2>/dev/full"),
        (2, "mkdir gone && cd gone && rmdir ../gone && $O check $1"),
        (0, "mkdir gone && cd gone && rmdir ../gone && $O analyze $1"),
        (2, "mkdir gone && cd gone && rmdir ../gone && $O analyze x.json"),
        (2, "mkdir gone && cd gone && rmdir ../gone && $O analyze $1 -o x"),
        (141, "$O analyze $1 --format json | true; exit ${PIPESTATUS:-141}"),
    ],
)
def test_streams_and_directories_that_are_gone_change_no_answer(code: int, script: str, tmp_path: Path) -> None:
    (tmp_path / "overlapscope.toml").touch()
    done = process(script, GOOD, BAD, directory=tmp_path)
    assert done.returncode == code
    assert "Traceback" not in done.stdout + done.stderr and "internal error" not in done.stderr
    # Messages for stderr go only there.
    assert "overlapscope: error" not in done.stdout
    for path in tmp_path.glob("*.json"):
        json.loads(path.read_bytes())


@pytest.mark.parametrize(
    ("program", "stderr"),
    in_turn(
        (
            (3, "import sys; sys.exit(3)"),
            (70, "import sys; sys.exit(70)"),
            (1, "raise ValueError"),
            (1, "from overlapscope.errors import UsageError\nraise UsageError('mine')"),
            (2, "import overlapscope.commands, sys; sys.exit(overlapscope.commands.main(['check', 'nothing.json']))"),
        ),
        ("2>&1", "2>&-", "2>/dev/full"),
    ),
)
def test_a_program_that_is_run_keeps_its_exit_code(program: tuple[int, str], stderr: str, tmp_path: Path) -> None:
    ends, script = program
    (tmp_path / "program.py").write_text(script)
    assert process(f"$O run program.py {stderr}", directory=tmp_path).returncode == ends


def test_our_own_failure_behind_a_program_is_reported_and_leaves_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import overlapscope.recorder.program as ours\n"
        "def fail(self, **options):\n    raise KeyError('ours')\n"
        "ours.ProgramRecording.finish = fail\n"
    )
    done = process("$O run program.py; echo $?", directory=tmp_path)
    assert done.stdout == "0\n"
    assert "internal error: KeyError: 'ours'" in done.stderr


@pytest.mark.afresh
@pytest.mark.parametrize("variable", [NINES, "-1", "nan", "1e9", "\x1b"])
def test_a_size_of_the_cache_that_is_none_is_reported(
    variable: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVERLAPSCOPE_CACHE_SIZE", variable)
    assert main(["cache", "info"]) == 2
    assert "OVERLAPSCOPE_CACHE_SIZE" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("columns", "command"),
    [(columns, "explain") for columns in ("", "0", "1", "-1", "20", "x", "²", "٣", "1e3", "1000000", NINES)]
    + [("1", command) for command in ("analyze", "check", "--help", "check --help", "diff")],
)
def test_any_width_is_one_that_can_be_read(columns: str, command: str, capfd: pytest.CaptureFixture[str]) -> None:
    good, bad = str(GOOD), str(BAD)
    arguments = {"analyze": [bad], "check": [good], "explain": ["host-sync"], "diff": [good, bad]}.get(command, [])
    with pytest.MonkeyPatch.context() as patch:
        # Not for longer: pytest itself has a width.
        patch.setenv("COLUMNS", columns)
        patch.setenv("LINES", columns)
        assert main([*command.split(), *arguments]) == 0
    out = capfd.readouterr().out
    assert 1 < max(map(len, out.splitlines())) <= 500
    assert len(out) < 200_000


def test_a_port_in_use_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["dashboard", "--no-open", "--port", str(port)]) == 2
    assert f"port {port}" in capfd.readouterr().err
