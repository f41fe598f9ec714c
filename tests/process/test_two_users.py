"""Two ordinary users on one machine, one of whom puts things where the other's might come; and homes of no use."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overlapscope.commands import commands, main
from overlapscope.reading.cache import Cache, user_cache
from overlapscope.reading.source import ReadRequest
from tests.support.helpers import TRACES, in_turn

if os.geteuid() != 0 or sys.platform != "linux":
    pytest.skip("only root can become two other users, as here on Linux", allow_module_level=True)

GOOD = TRACES / "known_causes" / "healthy_prefetch.json.gz"
ALICE, MALLORY = 61_001, 61_002
"""Users that need not exist by name."""
_KEEP_RIGHTS, _AMBIENT, _RAISE, _READ_ALL = 8, 47, 2, 2
"""Numbers of prctl, and of the right to read all files."""


def become(user: int) -> None:
    """Become another user, who may read all files, because Python itself may lie where only root can read it."""
    system = ctypes.CDLL(None, use_errno=True)
    system.prctl(_KEEP_RIGHTS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    rights = (ctypes.c_uint32 * 6)(*[1 << _READ_ALL] * 3)
    if system.capset((ctypes.c_uint32 * 2)(0x20080522, 0), rights) != 0:
        raise OSError(ctypes.get_errno(), "capset")
    system.prctl(_AMBIENT, _RAISE, _READ_ALL, 0, 0)


def as_user(user: int, do: Callable[[], int | None], *, output: Path) -> int:
    """Return the exit code of a process of another user, whose output goes to a file."""
    output.touch(mode=0o666)
    output.chmod(0o666)
    process = os.fork()
    if not process:
        try:
            for number in (1, 2):
                os.dup2(os.open(output, os.O_WRONLY | os.O_APPEND), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.stdin = os.fdopen(0, closefd=False)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
            become(user)
            os.umask(0o022)
            code = do() or 0
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        finally:
            import traceback

            traceback.print_exc(file=sys.__stderr__)
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def run(line: str) -> int:
    try:
        return main(line.split())
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder with the permissions of /tmp; Alice's home, which is the current directory, has a trace in it."""
    place = tmp_path_factory.mktemp("two_users")
    for directory in (place, *place.parents[:2]):
        directory.chmod(0o755)
    shared, home = place / "shared", place / "alice"
    for directory, user, mode in ((shared, 0, 0o1777), (home, ALICE, 0o755), (place / "said", 0, 0o777)):
        directory.mkdir()
        os.chown(directory, user, user)
        directory.chmod(mode)
    shutil.copy(GOOD, home / "good.json.gz")
    (home / "precious").write_text("Alice's")
    for name in ("good.json.gz", "precious"):
        os.chown(home / name, ALICE, ALICE)
    for variable in (
        "XDG_CACHE_HOME",
        "XDG_DATA_HOME",
        "XDG_RUNTIME_DIR",
        "OVERLAPSCOPE_CACHE_DIR",
        "OVERLAPSCOPE_HISTORY",
    ):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(home)
    yield shared
    for directory in (home, shared):
        directory.chmod(0o755)


def alice(line: str, shared: Path) -> tuple[int, str]:
    """Return the exit code and the message of Alice's command."""
    output = shared.parent / "said" / "alice"
    code = as_user(ALICE, lambda: run(line), output=output)
    text = output.read_text()
    output.unlink()
    assert "Traceback" not in text and "internal error" not in text, text
    return code, text


def mallory(do: Callable[[], object], shared: Path) -> None:
    def work() -> None:
        do()

    assert as_user(MALLORY, work, output=shared.parent / "said" / "mallory") == 0


def contents(home: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}


def _open_folder(path: Path, home: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def _open_file(path: Path, home: Path) -> None:
    path.write_text("{}")
    path.chmod(0o666)


PLANTS: dict[str, Callable[[Path, Path], object]] = {
    "a link to a file": lambda path, home: path.symlink_to(home / "precious"),
    "a link to nothing": lambda path, home: path.symlink_to(home / "new"),
    "a link to a folder": lambda path, home: path.symlink_to(home),
    "a folder": _open_folder,
    "a pipe": lambda path, home: os.mkfifo(path, 0o666),
    "a file": _open_file,
}
WRITERS = {
    "a report": ("analyze good.json.gz --format json -f -o SHARED/x.json", "x.json"),
    "a page": ("analyze good.json.gz --format html -f -o SHARED/x.html", "x.html"),
    "a baseline": ("check good.json.gz --write-baseline -f --baseline SHARED/x.json", "x.json"),
    "a result": ("check good.json.gz --format json:SHARED/x.json", "x.json"),
    "a table": ("query good.json.gz select(1) --format csv -f -o SHARED/x.csv", "x.csv"),
    "ranks": ("ranks good.json.gz --format json -f -o SHARED/x.json", "x.json"),
    "a timeline": ("whatif good.json.gz --pin -f --timeline SHARED/x.json.gz", "x.json.gz"),
    "a history": ("history add good.json.gz --job j --history SHARED/x.sqlite", "x.sqlite"),
    "a recording": ("run -f -o SHARED/x.trace.json.gz -c 1", "x.trace.json.gz"),
    "a drop": ("history add good.json.gz --job j --to SHARED/x", "x"),
}


@pytest.mark.parametrize(("writer", "plant"), in_turn(WRITERS, PLANTS))
def test_nothing_is_written_where_another_user_has_put_something(writer: str, plant: str, shared: Path) -> None:
    if writer == "a recording":
        pytest.importorskip("torch")
    line, name = WRITERS[writer]
    home = Path.cwd()
    mallory(lambda: PLANTS[plant](shared / name, home), shared)
    before, planted = contents(home), (shared / name).lstat()
    code, message = alice(line.replace("SHARED", str(shared)), shared)
    if writer == "a drop" and plant in ("a folder", "a link to a folder"):
        # A drop is for all, and each entry is a new file.
        assert code == 0
        return
    assert code == 2 and message.count("overlapscope: error:") == 1 and str(shared / name) in message
    assert contents(home) == before
    after = (shared / name).lstat()
    assert (after.st_ino, after.st_size, after.st_uid) == (planted.st_ino, planted.st_size, planted.st_uid)


@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
def test_no_history_is_read_beside_which_another_user_has_put_something(ending: str, shared: Path) -> None:
    assert alice(f"history add good.json.gz --job j --history {shared}/x.sqlite", shared)[0] == 0
    mallory(lambda: (shared / f"x.sqlite{ending}").write_bytes(b"believe me"), shared)
    for line in ("history --history", "history add good.json.gz --job k --history"):
        code, message = alice(f"{line} {shared}/x.sqlite", shared)
        assert code == 2 and "another user has put something there" in message


def keep() -> int:
    """Have this user's cache keep the trace."""
    cache = user_cache()
    if cache is None:
        return 3
    Cache(cache.folder, cache.limit_bytes, least_bytes=0, settled_ns=0).load(
        "good.json.gz", ReadRequest(progress=False)
    )
    return 0


@pytest.mark.parametrize("plant", ["a link to a folder", "a folder"])
def test_a_cache_that_another_user_could_fill_is_not_used(
    plant: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path.cwd()
    mallory(lambda: PLANTS[plant](shared / "cache", home), shared)
    for inside in ("cache", "cache/overlapscope"):
        monkeypatch.setenv("OVERLAPSCOPE_CACHE_DIR", str(shared / inside))
        before = contents(home)
        assert as_user(ALICE, keep, output=shared.parent / "said" / "keep") == 3
        assert alice("analyze good.json.gz", shared)[0] == 0
        assert contents(home) == before and not list(shared.glob("cache/**/*.npy"))
        assert "is another user's" in " ".join(alice("cache info", shared)[1].split())


def test_what_a_user_keeps_is_for_nobody_else(shared: Path) -> None:
    home = Path.cwd()
    assert alice("history add good.json.gz --job j", shared)[0] == 0
    assert as_user(ALICE, keep, output=shared.parent / "said" / "keep") == 0
    private = [*(home / ".cache" / "overlapscope").glob("*.npy"), *home.rglob("*.sqlite")]
    assert len(private) == 2
    for path in private:
        assert path.stat().st_uid == ALICE
        assert not path.stat().st_mode & 0o077 and not path.parent.stat().st_mode & 0o077


HOMES: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "read-only": lambda home, monkeypatch: home.chmod(0o555),
    "missing": lambda home, monkeypatch: monkeypatch.setenv("HOME", "/nonexistent"),
    "root's": lambda home, monkeypatch: os.chown(home, 0, 0),
    "unnamed": lambda home, monkeypatch: monkeypatch.delenv("HOME"),
    "relative": lambda home, monkeypatch: monkeypatch.setenv("HOME", "nowhere"),
}
WITHOUT_WRITING = {
    "analyze": "analyze good.json.gz",
    "check": "check good.json.gz",
    "ranks": "ranks good.json.gz",
    "record --list": "record --list",
    "cache info": "cache info",
    "doctor": "doctor",
}
OF_PLUGINS = {"query": "query good.json.gz select(1)", "mcp": "mcp ."}
WITHOUT_WRITING |= {name: line for name, line in OF_PLUGINS.items() if name in commands()}
WITH_WRITING = {
    "cache clear": "cache clear",
    "history": "history",
    "history add": "history add good.json.gz --job j",
    "run": "run -c 1",
    "try": "try -c 1",
}


@pytest.mark.parametrize(("command", "home"), in_turn([*WITHOUT_WRITING, *WITH_WRITING], HOMES))
def test_every_command_works_without_a_home_or_says_one_sentence(
    command: str, home: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command in ("run", "try"):
        pytest.importorskip("torch")
    HOMES[home](Path.cwd(), monkeypatch)
    code, message = alice({**WITHOUT_WRITING, **WITH_WRITING}[command], shared)
    if command in WITHOUT_WRITING:
        assert code == 0, message
    else:
        assert code in (0, 2) and message.count("overlapscope: error:") == (code == 2), message
    files_left = {path.name for path in Path.cwd().iterdir()}
    assert home in ("missing", "unnamed", "relative") or files_left == {"good.json.gz", "precious"}
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777
