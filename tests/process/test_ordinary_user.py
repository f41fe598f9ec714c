"""As an ordinary user, who may not write everywhere: what needs no writing works, and what does says so."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlapscope.commands import main
from tests.support.helpers import TRACES

if os.geteuid() == 0 and sys.platform != "linux":
    pytest.skip("root can only give up its rights on Linux", allow_module_level=True)

GOOD = TRACES / "known_causes" / "healthy_prefetch.json.gz"


def give_up_rights() -> None:
    """Drop the capabilities of root that override file modes, the only difference from other users here. Becoming
    another user is impossible, because Python itself may lie where only root can read it.
    """
    none_of_them = (ctypes.c_uint32 * 6)()
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, none_of_them) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def as_user(line: str, *, log: Path) -> int:
    """Return the exit code of a command in a process of an ordinary user."""
    process = os.fork()
    if not process:
        try:
            for number in (1, 2):
                os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), number)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
            if os.geteuid() == 0:
                give_up_rights()
            code = main(line.split())
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.fixture
def closed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a directory, with a trace, that is current directory, home and cache of a user who may not write to it."""
    place = tmp_path_factory.mktemp("closed")
    for directory in (place, *place.parents[:2]):
        directory.chmod(0o755)
    (place / "cache").mkdir()
    (place / "good.json.gz").write_bytes(GOOD.read_bytes())
    (place / "report.txt").write_text("mine")
    (place / "secret.json").write_text("{}")
    (place / "overlapscope.toml").touch()
    (place / "open").mkdir()
    (place / "open" / "report.txt").write_text("mine")
    (place / "open" / "report.txt").chmod(0o444)
    (place / "secret.json").chmod(0)
    (place / "report.txt").chmod(0o666)
    (place / "open").chmod(0o777)
    for directory in (place / "cache", place):
        directory.chmod(0o555)
    for variable in ("HOME", "XDG_CACHE_HOME", "TMPDIR"):
        monkeypatch.setenv(variable, str(place))
    monkeypatch.setenv("OVERLAPSCOPE_CACHE_DIR", str(place / "cache"))
    monkeypatch.setattr("overlapscope.reading.cache.MIN_BYTES", 0)
    monkeypatch.chdir(place)
    yield place
    place.chmod(0o755)


@pytest.mark.parametrize(
    "line",
    [
        "analyze good.json.gz",
        "analyze good.json.gz --format json",
        "analyze .",
        "check good.json.gz",
        "diff good.json.gz good.json.gz",
        "whatif good.json.gz --pin",
        "explain",
        "cache info",
        "cache clear",
        "analyze good.json.gz -o open/new.txt",
        "check good.json.gz --format junit:open/junit.xml",
    ],
)
def test_what_needs_no_writing_works(line: str, closed: Path, tmp_path: Path) -> None:
    if line == "analyze .":
        # A directory that everyone can read.
        (closed / "secret.json").unlink()
    assert as_user(line, log=tmp_path / "said") == 0
    assert "Traceback" not in (tmp_path / "said").read_text()
    assert not list((closed / "cache").iterdir())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("analyze good.json.gz -o new.txt", "is not writable"),
        ("analyze good.json.gz -o report.txt --force", "is not writable"),
        ("analyze good.json.gz -o open/report.txt --force", "is not writable"),
        ("check good.json.gz --format junit:new.xml", "is not writable"),
        ("check good.json.gz --write-baseline --baseline new.json", "is not writable"),
        ("whatif good.json.gz --pin -o new.json", "is not writable"),
        ("schema -o new.json", "is not writable"),
        ("scenarios report --output new", "cannot be created"),
        ("run nothing.py", "is not writable"),
        ("analyze secret.json", "is not readable"),
        ("analyze good.json.gz -o secret.json", "exists"),
        ("check secret.json", "is not readable"),
        ("check good.json.gz --baseline secret.json", "is not readable"),
        ("check good.json.gz --config secret.json", "cannot be read"),
    ],
)
def test_what_cannot_be_read_or_written_is_reported_in_a_sentence(
    line: str, message: str, closed: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in closed.rglob("*") if path.is_file()}
    assert as_user(line, log=tmp_path / "said") == 2
    text = (tmp_path / "said").read_text()
    assert message in text and "overlapscope: error:" in text and "Traceback" not in text
    assert {path: path.read_bytes() for path in closed.rglob("*") if path.is_file()} == before
