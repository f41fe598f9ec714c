"""Files on the disk, written completely or not at all, and opened only if they are regular files."""

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

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
WAITS: Final = "reading it waits for data that may never come"


def user_folder(on_mac: str, variable: str, elsewhere: str) -> Path | None:
    """Return our folder in this user's home; None if this user has no home.

    On macOS it is below `Library/on_mac`. Elsewhere it is below the folder that a variable of the XDG base directory
    specification names, or else below `elsewhere`.
    """
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        return home / "Library" / on_mac / "overlapscope"
    base = os.environ.get(variable, "")
    # The specification says to ignore a relative path.
    return (Path(base) if os.path.isabs(base) else home / elsewhere) / "overlapscope"


def write(target: Path, blocks: Iterable[bytes], *, over: bool = True) -> None:
    """Write a file, as `replacing` does.

    Raises:
        OSError: The file cannot be written.
    """
    with replacing(target, over=over) as path, open(path, "wb") as file:
        file.writelines(blocks)


@contextmanager
def replacing(target: Path, *, over: bool = True) -> Iterator[Path]:
    """Yield an empty file that replaces `target` when the block ends, or disappears if the block fails.

    At any moment, even after a power failure, `target` has its old or its new content. If `target` is a link, the
    linked file is replaced. An existing file keeps its mode, and its owner where permitted. Anything except a regular
    file (a terminal, a pipe, `/dev/stdout`) is opened and written itself, as any program would.

    Raises:
        OSError: The file cannot be written.
        FileExistsError: The file exists, and `over` is false.
        PermissionError: The file exists, and its mode forbids writing.
    """
    place, before = _place(target)
    if place is None:
        yield target
        return
    if before is not None and not os.access(place, os.W_OK):
        # The directory would permit replacing the file, but its missing permission is meant to protect it.
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
    """Yield an empty file that replaces `place` unconditionally, without flushing to the disk.

    Until the block ends, the file has the name `temporary`, in the same directory.

    Raises:
        OSError: The file cannot be written.
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
    """Return whether a path is a regular file or a link, without following the link."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def regular(path: str, flags: int) -> int:
    """Open a regular file, for `open(..., opener=regular)`.

    Opening a pipe could block forever.

    Returns:
        The file descriptor.

    Raises:
        OSError: The path is not a regular file.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
    """
    with open(path, "rb", opener=regular) as file:
        return _all_of(file)


def _all_of(file: BinaryIO) -> bytes:
    data: bytes | None = file.read()
    if data is None:
        raise OSError(errno.EAGAIN, WAITS)
    return data


def read(path: Path) -> bytes:
    """Return all of a file, or all that comes through a pipe.

    Raises:
        OSError: The file can't be read, is a device, which may never end, or makes readers wait, as `/proc/kmsg` does.
    """
    with open_source(path) as file:
        return _all_of(file)


def open_source(path: Path) -> BinaryIO:
    """Open a file or a pipe for reading.

    Returns:
        The open file. If it is special and its data has not arrived yet, `read` returns None.

    Raises:
        OSError: The file can't be opened, or is a device.
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


def is_planted(path: str | Path) -> bool:
    """Return whether another user put this, perhaps a link, into a folder that everybody may write to, such as /tmp.

    Linux follows no such links where `fs.protected_symlinks` is set, but not every system sets it.
    """
    try:
        state, folder = os.lstat(path), os.stat(os.path.dirname(os.path.abspath(path)))
    except OSError:
        return False
    return bool(folder.st_mode & stat.S_IWOTH) and state.st_uid not in (os.geteuid(), folder.st_uid)


def refuse_planted(path: str | Path) -> None:
    """Raise PermissionError if another user put this into a folder that everybody may write to."""
    if is_planted(path):
        raise PermissionError(errno.EACCES, "another user has put something there", os.fspath(path))


def is_written_in_place(path: Path) -> bool:
    """Return whether a path exists and is not a regular file, so that writing to it loses nothing.

    Raises:
        OSError: The path cannot be examined.
    """
    place, _ = _place(path)
    return place is None


def _place(target: Path) -> tuple[str | None, os.stat_result | None]:
    """Return the path after all links and its state; no path if it must be written directly."""
    path = os.fspath(target)
    try:
        state = os.stat(path)
    except FileNotFoundError:
        state = None
    if state is not None and not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
        refuse_planted(path)
        return None, state
    # The links are not circular: `stat` would have raised ELOOP.
    while os.path.islink(path):
        refuse_planted(path)
        directory = os.path.dirname(path)
        if os.path.realpath(directory).startswith(("/proc/", "/dev/fd")):
            # This is an open file of this process. Its reader has it open, so it must not be replaced.
            return None, state
        path = os.path.join(directory, os.readlink(path))
    return path, state


def _make_alike(path: Path, before: os.stat_result) -> None:
    with suppress(PermissionError):
        os.chown(path, before.st_uid, before.st_gid)
    os.chmod(path, stat.S_IMODE(before.st_mode))


def flush(path: Path) -> None:
    """Flush written data, so that it survives a power failure.

    Raises:
        OSError: The data cannot be flushed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _removed_by_signals(path: Path) -> Iterator[None]:
    """Remove the file if the process is ended by a signal that it doesn't handle."""
    process = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            with suppress(OSError):
                os.unlink(path)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    here = threading.current_thread() is threading.main_thread()
    heeded = [number for number in _ENDING_SIGNALS if here and signal.getsignal(number) == signal.SIG_DFL]
    for number in heeded:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)
