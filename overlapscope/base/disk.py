"""Files on the disk: written whole or not at all, and opened unasked only where they are files."""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, BinaryIO, Final

_ENDS = (signal.SIGTERM, signal.SIGHUP)
WAITS: Final = "reading it waits for data that may never come"


def of_user(on_mac: str, variable: str, elsewhere: str) -> Path | None:
    """Our folder of a kind in this user's home: below `Library/on_mac`, or by the XDG base directory specification
    below what a variable names, else `elsewhere`. None where this user has no home.
    """
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        return home / "Library" / on_mac / "overlapscope"
    told = os.environ.get(variable, "")
    # A relative path is to be ignored, says the specification.
    return (Path(told) if os.path.isabs(told) else home / elsewhere) / "overlapscope"


def write(target: Path, blocks: Iterable[bytes], *, over: bool = True) -> None:
    """Write a file, as `replacing` does. Raises OSError."""
    with replacing(target, over=over) as path, open(path, "wb") as file:
        file.writelines(blocks)


@contextmanager
def replacing(target: Path, *, over: bool = True) -> Iterator[Path]:
    """An empty file to be written, which takes the place of `target` when the block ends; it is removed where the block
    raises, or the process is asked to end.

    So at any moment, and after a power failure, `target` is what it was or what it becomes. Where it is a link, the
    file behind it is replaced; one that was there keeps its mode, and its owner where that may be given. What is no
    file (a terminal, a pipe, `/dev/stdout`) is handed over itself, and written as any program would.

    Raises OSError; FileExistsError where there is a file and it is not to be written `over`.
    """
    place, before = _place(target)
    if place is None:
        yield target
        return
    if before is not None and not os.access(place, os.W_OK):
        # The directory would let it be replaced all the same, but whoever took the permission meant the file.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), place)
    with put_in_place(place, f".overlapscope-{os.urandom(8).hex()}.part") as unfinished:
        yield unfinished
        if before is not None:
            _make_alike(unfinished, before)
        flush(unfinished)
        if not over and os.path.lexists(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), place)


@contextmanager
def put_in_place(place: str | Path, temporary: str, mode: int = 0o666) -> Iterator[Path]:
    """`replacing` without its regard for what is there: whatever has the name is replaced, and nothing is flushed
    to the disk. Until then the file is called `temporary`, in the same directory.

    Raises OSError.
    """
    unfinished = Path(os.path.join(os.path.dirname(place), temporary))
    with _removed_by_signals(unfinished):
        try:
            os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
            yield unfinished
            os.replace(unfinished, place)
        finally:
            with suppress(OSError):
                os.unlink(unfinished)


def may_be_file(path: Path) -> bool:
    """Return whether a regular file or a link has this path; where a link leads is not looked at."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def regular(path: str, flags: int) -> int:
    """For `open(..., opener=regular)`: raises OSError at what is no file, as a pipe, whose writer may never come."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def read_regular(path: Path) -> bytes:
    """All of a file. Raises OSError, also for what is no file."""
    with open(path, "rb", opener=regular) as file:
        return _all_of(file)


def _all_of(file: BinaryIO) -> bytes:
    data: bytes | None = file.read()
    if data is None:
        raise OSError(errno.EAGAIN, WAITS)
    return data


def read(path: Path) -> bytes:
    """Return all of a file, or all that comes through a pipe.

    Raises OSError, also for a device, which may never end, and where reading waits for data, as that of `/proc/kmsg`
    does.
    """
    with open_source(path) as file:
        return _all_of(file)


def open_source(path: Path) -> BinaryIO:
    """Open a file or a pipe for reading; where data of a special file is not there yet, `read` returns None.

    Raises OSError, also for a device.
    """
    # Without O_NONBLOCK, opening a pipe waits for its writer, as it should.
    waits = 0 if stat.S_ISFIFO(os.stat(path).st_mode) else os.O_NONBLOCK | os.O_NOCTTY
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | waits))  # noqa: SIM115
    if is_device(file):
        file.close()
        raise OSError(errno.EINVAL, "it is a device", str(path))
    return file


def is_device(file: IO[bytes]) -> bool:
    """Return whether an open file is a device that may never end: not a terminal, and not `/dev/null`."""
    try:
        state = os.fstat(file.fileno())
    except OSError:
        return False
    return stat.S_ISCHR(state.st_mode) and not file.isatty() and state.st_rdev != os.stat(os.devnull).st_rdev


def is_written_in_place(path: Path) -> bool:
    """Whether it is there and no file: then nothing in it is lost by writing to it. Raises OSError."""
    place, _ = _place(path)
    return place is None


def _place(target: Path) -> tuple[str | None, os.stat_result | None]:
    """The path behind all links and what is there; no path where that is to be written as it is."""
    path = os.fspath(target)
    try:
        state = os.stat(path)
    except FileNotFoundError:
        state = None
    if state is not None and not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
        return None, state
    # There is no circle, or `stat` would have said so.
    while os.path.islink(path):
        directory = os.path.dirname(path)
        if os.path.realpath(directory).startswith(("/proc/", "/dev/fd")):
            # An open file of this process: whoever opened it reads it there, and not under its name.
            return None, state
        path = os.path.join(directory, os.readlink(path))
    return path, state


def _make_alike(path: Path, before: os.stat_result) -> None:
    with suppress(PermissionError):
        os.chown(path, before.st_uid, before.st_gid)
    os.chmod(path, stat.S_IMODE(before.st_mode))


def flush(path: Path) -> None:
    """See to it that what was written survives a power failure. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _removed_by_signals(path: Path) -> Iterator[None]:
    """The file is removed where a signal ends the process that nothing else would have heeded."""
    process = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            with suppress(OSError):
                os.unlink(path)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    here = threading.current_thread() is threading.main_thread()
    heeded = [number for number in _ENDS if here and signal.getsignal(number) == signal.SIG_DFL]
    for number in heeded:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)
