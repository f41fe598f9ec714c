"""Traces and reports that come through a pipe."""

from __future__ import annotations

import gzip
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from overlapscope import load
from overlapscope.commands import main
from overlapscope.errors import UnreadableTrace
from overlapscope.reading.files import place

TRACE = Path(__file__).parents[2] / "traces" / "known_causes" / "host_sync.json.gz"
PLAIN = gzip.decompress(TRACE.read_bytes())


def overlapscope(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "overlapscope", *args]
    return subprocess.run(command, check=False, capture_output=True, timeout=120, input=stdin)


@pytest.mark.parametrize("content", [PLAIN, TRACE.read_bytes()], ids=["plain", "packed"])
@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_a_piped_trace_is_analysed_as_the_file_is(content: bytes, name: str) -> None:
    of_file, piped = (
        overlapscope("analyze", str(TRACE), "--format", "json"),
        overlapscope("analyze", name, "--format", "json", stdin=content),
    )
    shown = b"<stdin>" if name == "-" else name.encode()
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout.replace(shown, b"T") == of_file.stdout.replace(os.fsencode(TRACE), b"T")


@pytest.mark.parametrize("command", [("check",), ("whatif",), ("diff", str(TRACE)), ("ranks",)])
def test_every_command_that_reads_a_trace_reads_a_pipe(command: tuple[str, ...]) -> None:
    done = overlapscope(*command, "-", stdin=PLAIN)
    assert done.returncode in (0, 1), done.stderr
    assert b"Traceback" not in done.stderr


def test_the_dashboard_shows_a_pipe() -> None:
    program = (
        "from overlapscope import load\nfrom overlapscope.dashboard.library import find\n"
        "from overlapscope.reading.file_names import input_path\n"
        "[one], _ = find([input_path('-')])\nprint(len(load(one.path).gpu_ops))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=120, input=PLAIN)
    assert int(done.stdout) == len(load(TRACE).gpu_ops), done.stderr


def test_a_report_comes_through_a_pipe_too() -> None:
    report = overlapscope("analyze", str(TRACE), "--format", "json").stdout
    assert overlapscope("check", "-", stdin=report).stdout == overlapscope("check", str(TRACE)).stdout


def test_a_named_pipe_is_read_though_it_is_opened_more_than_once(tmp_path: Path) -> None:
    fifo = tmp_path / "t.json"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(PLAIN,))
    writer.start()
    trace = load(fifo)
    writer.join()
    assert len(trace.gpu_ops) == len(load(TRACE).gpu_ops)
    assert trace.source == str(fifo)
    copy = place(fifo, 1)
    assert copy.read_bytes() == PLAIN


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "the pipe was empty"), (b"hello", "is not JSON"), (bytes(5 << 20), "is not JSON")],
    ids=["empty", "text", "zeros"],
)
def test_what_comes_and_is_not_a_trace_is_reported(content: bytes, says: str) -> None:
    done = overlapscope("analyze", "-", stdin=content)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("overlapscope: error: <stdin>: ")
    assert says in done.stderr.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="has no /proc")
@pytest.mark.parametrize(
    "line",
    [
        "analyze /proc/kmsg",
        "analyze /dev/kmsg",
        "analyze /dev/urandom",
        "analyze /dev/zero",
        "diff /dev/zero /dev/zero",
        "ranks /proc/kmsg",
        f"check {TRACE} --baseline /dev/zero",
        f"check {TRACE} --config /dev/zero",
        f"check {TRACE} --config /proc/kmsg",
        f"check {TRACE} --baseline /proc/kmsg",
        f"whatif {TRACE} --pin --calibration /dev/zero",
    ],
)
def test_a_device_or_a_file_that_blocks_is_refused_in_a_sentence(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    def hangs(number: int, frame: object) -> None:
        raise TimeoutError(line)

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(30)
    try:
        assert main(line.split()) == 2
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    errors = capsys.readouterr().err
    # /proc/kmsg has messages of the kernel until someone reads them.
    assert any(words in errors for words in ("cannot be read", "is not readable", "is not JSON", "is not valid TOML"))


def test_a_device_as_standard_input_is_refused() -> None:
    command = [sys.executable, "-m", "overlapscope", "analyze", "-"]
    with open("/dev/zero", "rb") as zeros:
        done = subprocess.run(command, check=False, capture_output=True, timeout=120, stdin=zeros)
    assert done.returncode == 2
    assert b"is a device" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="has no /proc")
def test_a_file_of_proc_is_read_though_it_has_no_size_and_an_empty_file_can_be_written_later(tmp_path: Path) -> None:
    environ = Path("/proc/self/environ")
    assert place(environ, 1 << 20).read_bytes() == environ.read_bytes()
    later = tmp_path / "later.json"
    later.touch()
    assert place(later, 1) == later
    later.write_bytes(PLAIN)
    assert load(later).gpu_ops is not None


def test_a_terminal_as_input_is_reported_instead_of_waited_for() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "overlapscope", "analyze", "-"]
    done = subprocess.run(command, check=False, capture_output=True, timeout=120, stdin=theirs)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2
    assert b"is a terminal" in done.stderr


@pytest.mark.parametrize("content", [PLAIN, gzip.compress(b'{"a": "' + bytes(1 << 20))], ids=["plain", "bomb"])
def test_the_limit_holds_for_pipes(content: bytes) -> None:
    done = overlapscope("analyze", "-", "--max-size", "4kB", stdin=content)
    assert done.returncode == 2
    assert b"--max-size" in done.stderr


def test_no_copy_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for content in (PLAIN, b"hello", b""):
        overlapscope("analyze", "-", stdin=content)
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_that_cannot_be_kept_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = tmp_path / "t.json"
    os.mkfifo(fifo)
    threading.Thread(target=fifo.write_bytes, args=(b"{",)).start()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(UnreadableTrace, match="cannot be stored"):
        load(fifo)
