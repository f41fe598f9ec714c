"""Tests of writing files: whole or not at all, whatever happens meanwhile, and never over a file that is being read."""

from __future__ import annotations

import gzip
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from overlapscope.base import disk
from overlapscope.commands import main
from overlapscope.errors import OverlapscopeError
from overlapscope.prediction import calibration
from overlapscope.recorder import trace_file
from tests.support.helpers import TRACES, in_turn

GOOD = TRACES / "known_causes" / "healthy_prefetch.json.gz"
OLD = b"what was there before"


def remaining(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# -- replaced files -----------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_a_new_file_has_the_mode_that_open_would_give_it(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        disk.write(tmp_path / "new", [b"1", b"2"])
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == b"12"
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755])
def test_a_file_that_was_there_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(OLD)
    path.chmod(mode)
    disk.write(path, [b"new"])
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert remaining(tmp_path) == {"old"}


@pytest.mark.parametrize("there", [True, False])
def test_links_stay_and_the_file_behind_them_is_written(there: bool, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    target = tmp_path / "other" / "target"
    if there:
        target.write_bytes(OLD)
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to(Path("other") / "target")
    disk.write(tmp_path / "first", [b"new"])
    assert (tmp_path / "first").is_symlink() and (tmp_path / "second").is_symlink()
    assert target.read_bytes() == b"new" and remaining(tmp_path / "other") == {"target"}


def test_a_circle_of_links_and_a_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    for target in (tmp_path / "circle", tmp_path, tmp_path / "no" / "where"):
        with pytest.raises(OSError, match=r"levels|directory"):
            disk.write(target, [b"new"])
    assert remaining(tmp_path) == {"circle"}


def test_a_file_that_has_come_meanwhile_is_not_replaced_unless_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def blocks() -> Iterator[bytes]:
        path.write_bytes(OLD)
        yield b"new"

    with pytest.raises(FileExistsError):
        disk.write(path, blocks(), over=False)
    assert path.read_bytes() == OLD and remaining(tmp_path) == {"file"}


def test_a_pipe_and_standard_output_are_written_as_they_are(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    disk.write(pipe, [b"1", b"2"], over=False)
    reader.join()
    assert read == [b"12"] and pipe.is_fifo()
    script = "import pathlib, overlapscope.base.disk; overlapscope.base.disk.write(pathlib.Path(sys.argv[1]), [b'new'])"
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        with (tmp_path / "redirected").open("wb") as file:
            subprocess.run([sys.executable, "-c", f"import sys; {script}", name], stdout=file, check=True)
            # The file that was opened, not another of its name.
            assert os.fstat(file.fileno()).st_size == 3
        piped = subprocess.run(
            [sys.executable, "-c", f"import sys; {script}", name], stdout=subprocess.PIPE, check=True
        )
        assert piped.stdout == b"new"
    assert remaining(tmp_path) == {"pipe", "redirected"}


def test_only_regular_files_are_read_unasked(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "file").write_bytes(OLD)
    for name in ("pipe", "directory", "circle", "null"):
        with pytest.raises(OSError, match=r"regular|levels"):
            disk.read_regular(tmp_path / name)
    assert disk.read_regular(tmp_path / "file") == OLD


# -- what may happen meanwhile --------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_breaks_off_leaves_what_was_there_and_nothing_else(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)

    def blocks() -> Iterator[bytes]:
        yield b"new"
        raise error

    with pytest.raises(error):
        disk.write(path, blocks())
    assert path.read_bytes() == OLD and remaining(tmp_path) == {"file"}


_WRITES_SLOWLY = """
import sys, time
from pathlib import Path
from overlapscope.base import disk

def blocks():
    yield b"new"
    print("begun", flush=True)
    time.sleep(60)

disk.write(Path(sys.argv[1]), blocks())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_process_as_ever_and_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    command = [sys.executable, "-c", _WRITES_SLOWLY, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stdout.readline() == b"begun\n"
        process.send_signal(number)
    assert process.returncode == -number
    assert path.read_bytes() == OLD and remaining(tmp_path) == {"file"}


def test_a_signal_that_is_ignored_or_handled_stays_so(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with disk.replacing(tmp_path / "file") as path:
            signal.raise_signal(signal.SIGTERM)
            path.write_bytes(b"new")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM] and (tmp_path / "file").read_bytes() == b"new"


# -- every command that writes --------------------------------------------------------------------

_LABORATORY = "overlapscope.plugins.laboratory"
_COMMANDS = {
    "html": f"analyze {GOOD} --format html -f -o",
    "json": f"analyze {GOOD} --format json -f -o",
    "timeline": f"whatif {GOOD} --pin -f -o",
    "diff": f"diff {GOOD} {GOOD} --format html -f -o",
    "baseline": f"check {GOOD} --write-baseline -f --baseline",
    "schema": "schema -f -o",
    "check": f"check {GOOD} --format",
}
EVERY = [*_COMMANDS, *(["results"] if find_spec(_LABORATORY) else []), "calibration", "trace"]


def write(what: str, target: Path) -> int:
    """Write one of our files, and return an exit code."""
    if what in _COMMANDS:
        return main([*_COMMANDS[what].split(), f"junit:{target}" if what == "check" else str(target)])
    try:
        if what == "results":
            results = import_module(f"{_LABORATORY}.results")
            results.write_results(results.read_results(TRACES / "laboratory"), target.parent)
        elif what == "calibration":
            calibration.write(calibration.shipped(), target)
        else:
            events = ",\n".join(f'{{"name": "{number}"}}' for number in range(20_000))
            trace_file.write(lambda name: Path(name).write_text(f'{{"traceEvents": [{events}]}}'), target)
    except OverlapscopeError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def begin(what: str, target: Path, log: Path, limit_bytes: int = resource.RLIM_INFINITY) -> int:
    """Run `write` in a separate process and return its id. Its messages go to a file."""
    process = os.fork()
    if process:
        return process
    try:
        for number, path in ((1, os.devnull), (2, str(log))):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        code = write(what, target)
        sys.stderr.flush()
        os._exit(code)
    finally:
        os._exit(99)


def target_of(what: str, directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    return directory / {"results": "results.json", "trace": "trace.json.gz"}.get(what, "target")


def content(path: Path) -> bytes:
    """Without the time that gzip notes."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


@pytest.mark.parametrize("what", EVERY)
def test_a_process_that_is_killed_leaves_the_old_file_or_the_new_one(what: str, tmp_path: Path) -> None:
    target, log = target_of(what, tmp_path / "here"), tmp_path / "said"
    os.waitpid(begin(what, target, log), 0)
    begun = time.monotonic()
    os.waitpid(begin(what, target, log), 0)
    lasts_s = time.monotonic() - begun
    new = content(target)
    moments = random.Random(what)
    for number in range(3):
        old = gzip.compress(OLD) if what == "trace" else OLD
        if what == "calibration":
            old = new.replace(b"NVIDIA H200", b"NVIDIA H100")
        target.write_bytes(old)
        process = begin(what, target, log)
        # Most of the time is reading; the file is written at the end.
        time.sleep(lasts_s * moments.uniform(0.2 * number, 1))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        assert target.read_bytes() == old or content(target) == new


@pytest.mark.parametrize("what", EVERY)
def test_a_disk_that_is_full_leaves_what_was_there_and_says_so(what: str, tmp_path: Path) -> None:
    target, log = target_of(what, tmp_path / "here"), tmp_path / "said"
    assert os.waitpid(begin(what, target, log), 0)[1] == 0
    before = target.read_bytes()
    process = begin(what, target, log, limit_bytes=len(before) // 2)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 2
    assert "cannot be written (File too large)" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert ("and is unchanged" in log.read_text()) == (what in _COMMANDS)
    assert target.read_bytes() == before and remaining(target.parent) == {target.name}


@pytest.mark.parametrize("what", ["json", "trace"])
def test_a_small_disk_that_is_full_leaves_what_was_there_and_says_so(what: str, tmp_path: Path) -> None:
    place, log = tmp_path / "disk", tmp_path / "said"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("needs to mount a small file system, which only root may, and not everywhere")
    try:
        target = target_of(what, place)
        (place / "other").write_bytes(bytes(8192))
        process = begin(what, target, log)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 2
        assert "cannot be written (" in log.read_text() and "Traceback" not in log.read_text()
        assert remaining(place) == {"other"}
    finally:
        subprocess.run(["umount", str(place)], check=True)


# -- files being read are not overwritten -------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "link"),
    in_turn(
        [
            "analyze IN --force -o OUT",
            "analyze . --force -o OUT",
            "analyze *.json.gz --force -o OUT",
            "diff IN other.json.gz --force -o OUT",
            "diff other.json.gz IN --force -o OUT",
            "whatif IN --pin --force -o OUT",
            "whatif IN --pin --force --timeline OUT",
            "ranks IN --workers 1 --force -o OUT",
            "check IN --write-baseline --force --baseline OUT",
            "check IN --format json:OUT",
            "check . --format text --format junit:OUT",
            "check other.json.gz --baseline IN --format json:OUT",
            "check other.json.gz --config IN --format json:OUT",
            "check other.json.gz --write-baseline --config IN --force --baseline OUT",
            "whatif other.json.gz --pin --calibration IN --force -o OUT",
            "run -f -o OUT IN",
        ],
        [None, os.symlink, os.link],
    ),
)
def test_no_command_writes_over_what_it_reads(
    line: str,
    link: Callable[[Path, Path], None] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = b"skip_steps = 1" if "--config IN" in line else GOOD.read_bytes()
    (tmp_path / "in.json.gz").write_bytes(given)
    (tmp_path / "other.json.gz").write_bytes(GOOD.read_bytes())
    if link is not None:
        link(tmp_path / "in.json.gz", tmp_path / "link.json.gz")
    names = {"IN": "in.json.gz", "OUT": "in.json.gz" if link is None else "link.json.gz"}
    words = [
        next((word.replace(key, name) for key, name in names.items() if key in word), word) for word in line.split()
    ]
    assert main(words) == 2
    assert "is also an input" in capfd.readouterr().err
    assert (tmp_path / "in.json.gz").read_bytes() == given


def test_the_configuration_that_is_found_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "overlapscope.toml").write_text("")
    assert main(["check", str(GOOD), "--format", "json:overlapscope.toml"]) == 2
    assert "is also an input" in capfd.readouterr().err
    assert (tmp_path / "overlapscope.toml").read_text() == ""


# -- directories -----------------------------------------------------------------


def _as_pipe(path: Path) -> None:
    os.mkfifo(path)


def _as_circle(path: Path) -> None:
    path.symlink_to(path.name)


def _as_directory(path: Path) -> None:
    path.mkdir()


def _as_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_as_pipe, _as_circle, _as_directory, _as_device])
def test_special_files_in_a_directory_do_not_block(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ranks, laboratory = tmp_path / "ranks", tmp_path / "laboratory"
    for directory in (ranks, laboratory, tmp_path / "overlapscope-laboratory"):
        directory.mkdir()
    (ranks / "rank0.json.gz").write_bytes(GOOD.read_bytes())
    make(ranks / "rank1.json.gz")
    make(tmp_path / "overlapscope-laboratory" / "calibration.json")
    make(laboratory / "results.json")
    monkeypatch.chdir(tmp_path)
    assert main(["analyze", "ranks"]) == 0
    # A broken link may be a rank, so a check of a job reports it.
    assert main(["check", "ranks"]) == (2 if make is _as_circle else 0)
    assert "internal error" not in capfd.readouterr().err
    assert main(["whatif", "ranks/rank0.json.gz", "--pin"]) == 0
    assert main(["scenarios", "report", "--results", "laboratory"]) == 2
    make(tmp_path / "overlapscope.toml")
    assert main(["check", "ranks"]) == 2


@pytest.mark.parametrize("make", [_as_pipe, _as_circle, _as_directory, _as_device])
def test_special_files_in_the_cache_do_not_block(make: Callable[[Path], None], tmp_path: Path) -> None:
    from overlapscope.reading.cache import Cache
    from overlapscope.reading.cache_folder import Folder
    from overlapscope.reading.source import ReadRequest

    cache = Cache(Folder(tmp_path / "cache"), limit_bytes=1 << 30, least_bytes=0, settled_ns=0)

    def load() -> int:
        trace = cache.load(GOOD, ReadRequest(progress=False))
        return len(trace.gpu_ops)

    expected = load()
    for path in (tmp_path / "cache").glob("*.npy"):
        path.unlink()
        make(path)
    assert load() == load() == expected
    assert main(["cache", "info"]) == 0
    cache.folder.clear()
