"""Trace files: the facts that each states, writing it whole or not at all, and amending it later."""

from __future__ import annotations

import gzip
import json
import mmap
import os
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, NamedTuple, Self

from overlapscope.base.marks import (
    FOUND,
    HOST_ACTIVITY,
    ORIGIN,
    PLAIN_STEPS,
    STEP_SOURCE,
    THREADS,
    TORCH,
    WARM_UP_STEPS,
)
from overlapscope.base.revision import job_name, revision, running_script
from overlapscope.errors import RecordingFailed
from overlapscope.recorder import destination
from overlapscope.recorder.main_thread import undisturbed
from overlapscope.version import __version__

if TYPE_CHECKING:
    from overlapscope.trace.host_activity import HostActivity
    from overlapscope.trace.model import PlainSteps, TraceOrigin


# -- Facts that a trace states -----------------------------------------------------------------------

_MAX_NAMED = 100
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Metadata:
    """Facts about a recording that its trace states under `marks.METADATA`."""

    warm_up_steps: int
    plain_steps: PlainSteps
    origin: TraceOrigin | None = None
    step_source: str | None = None
    """Description of what ended steps."""
    threads: dict[str, str] = field(default_factory=dict)
    """Python's names of threads, by their numbers."""
    host_activity: HostActivity | None = None
    """Activity of the host in steps after the recording, if it was sampled."""
    found: dict[str, int] = field(default_factory=dict)
    """Number of things that each observer found, by the names of their plugins."""

    def json(self) -> str:
        """Return the text that is in the trace, exactly once."""
        import torch
        from msgspec import to_builtins

        from overlapscope.trace.model import PlainSteps

        content = {"version": __version__, TORCH: torch.__version__, WARM_UP_STEPS: self.warm_up_steps}
        if self.origin is not None:
            content[ORIGIN] = {name: value for name, value in to_builtins(self.origin).items() if value is not None}
        if self.step_source is not None:
            content[STEP_SOURCE] = self.step_source
        if self.threads:
            content[THREADS] = self.threads
        if self.plain_steps != PlainSteps():
            content[PLAIN_STEPS] = to_builtins(self.plain_steps)
        if self.host_activity is not None:
            content[HOST_ACTIVITY] = to_builtins(self.host_activity)
        if self.found:
            content[FOUND] = self.found
        return json.dumps(content)


def thread_names() -> dict[str, str]:
    """Return Python's names of the threads that run now, by their numbers; of many threads, the oldest."""
    return {str(thread.native_id): thread.name[:_LONGEST_NAME] for thread in threading.enumerate()[:_MAX_NAMED]}


def origin() -> TraceOrigin:
    """Return the origin of a recording that starts now. The host is left out, since users pass traces on."""
    from overlapscope.trace.model import TraceOrigin

    script = running_script()
    commit, branch = _revision(script.parent)
    return TraceOrigin(at_ns=time.time_ns(), job=job_name(script), commit=commit, branch=branch)


_revision = cache(revision)
"""Function that returns the revision at the first recording: a running program does not change with its files."""


_GZIP_LEVEL = 6
_COPIED_AT_ONCE = 1 << 20
_HEAD_BYTES = 1 << 20
"""Size of the head of a trace, which contains its metadata, before the events."""
_ANNOTATIONS = ("user_annotation", "gpu_user_annotation")


class Written(NamedTuple):
    """A file, and what changes if it is replaced or modified."""

    path: Path
    identity: tuple[int, ...]

    @classmethod
    def now(cls, path: Path) -> Self:
        """Return the identity of the present file. Raises OSError if there is no file."""
        status = path.stat()
        return cls(path, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


def write(
    export: Callable[[str], object], path: Path, *, no_steps: Collection[str] = (), since_ns: int | None = None
) -> Written:
    """Write a trace.

    Args:
        export: Function that writes the trace to a .json file of the given name.
        path: File to write, compressed if it ends in `.gz`. If it belongs to another process, the trace is written
            beside it (`destination.put`).
        no_steps: Names of annotations to remove from the trace. One that was open when the profiler stopped is among
            them, since Kineto writes it as if it had ended there.
        since_ns: Time after which other processes may have written `path` (`destination.put`).

    Returns:
        The identity of the file, for `amend`.

    Raises:
        RecordingFailed: The file cannot be written. `path` is unchanged.
    """
    undisturbed(even_by_the_end=True)
    try:
        # Beside the target, so that it is on the same disk and moves there atomically. In a directory, since Kineto
        # leaves a file of its own there if it fails.
        with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as directory:
            plain = Path(directory) / "trace.json"
            export(str(plain))
            _check_whole(plain)
            for name in no_steps:
                _blank_out(plain, name)
            whole = _packed(plain) if path.name.endswith(".gz") else plain
            return Written.now(destination.put(whole, path, since_ns=since_ns))
    except OSError as error:
        raise RecordingFailed(
            f"{path}: the trace cannot be written ({error.strerror or error}); choose another place."
        ) from None


def _check_whole(plain: Path) -> None:
    """Raise OSError if Kineto, which reports no errors, could not write the whole file."""
    if not plain.exists():
        raise OSError("the disk may be full")
    with plain.open("rb") as file:
        file.seek(-min(64, os.fstat(file.fileno()).st_size), os.SEEK_END)
        if not file.read().rstrip().endswith(b"}"):
            raise OSError("the disk may be full")


def amend(written: Written, old: bytes, new: bytes) -> Written:
    """Replace the metadata `old` in the head of a trace by `new`.

    Returns:
        The identity of the changed file.

    Raises:
        RecordingFailed: The metadata can't be replaced, or the file was changed or removed meanwhile. The file is
            unchanged.
    """  # noqa: DOC501
    path = written.path
    undisturbed(even_by_the_end=True)
    try:
        if Written.now(path) != written:
            raise OSError("the file was replaced")
        with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as directory:
            amended = Path(directory) / "trace"
            with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as source, amended.open("wb") as raw:
                head = source.read(_HEAD_BYTES)
                if head.count(old) != 1:
                    raise OSError("its metadata was changed")
                with _packing(raw) if path.name.endswith(".gz") else raw as target:
                    target.write(head.replace(old, new))
                    shutil.copyfileobj(source, target, _COPIED_AT_ONCE)
            return Written.now(destination.put(amended, path))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecordingFailed(f"{path}: the trace cannot be amended ({reason}).") from None


def _packed(plain: Path) -> Path:
    packed = plain.with_suffix(".json.gz")
    with plain.open("rb") as source, packed.open("wb") as raw, _packing(raw) as target:
        shutil.copyfileobj(source, target, _COPIED_AT_ONCE)
    return packed


def _packing(raw: IO[bytes]) -> gzip.GzipFile:
    return gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=_GZIP_LEVEL)


def _blank_out(plain: Path, name: str) -> None:
    """Overwrite the annotations of that name with spaces, which JSON allows wherever an event may be.

    Kineto writes an event as a line `  {`, further lines, and a line `  },`. Text that does not parse as such an
    annotation stays.
    """
    needle = f'"name": {json.dumps(name)}'.encode()
    with plain.open("r+b") as file, mmap.mmap(file.fileno(), 0) as text:
        at = text.find(needle)
        while at != -1:
            begin, end = text.rfind(b"\n  {", 0, at), text.find(b"\n  },", at)
            if begin != -1 and end != -1 and _is_annotation(text[begin : end + 4], name):
                text[begin : end + 5] = b" " * (end + 5 - begin)
            at = text.find(needle, at + len(needle))


def _is_annotation(text: bytes, name: str) -> bool:
    try:
        event = json.loads(text)
    except ValueError:
        return False
    return isinstance(event, dict) and event.get("name") == name and event.get("cat") in _ANNOTATIONS
