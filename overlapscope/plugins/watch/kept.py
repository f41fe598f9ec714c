"""Recordings of a watched program on the disk: a directory for each, with its trace and its report."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from overlapscope.base import disk

TRACE, REPORT = "recording.trace.json.gz", "report.html"
_NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z-\d+")
_NO_NAME = re.compile(r"[^\w.-]+")


def place(folder: Path, job: str) -> Path:
    """Return the directory of a job's recordings in a folder of the user's data."""
    return folder / "watched" / (_NO_NAME.sub("-", job).strip(".-")[:100] or "job")


def begin(directory: Path) -> Path:
    """Create a directory for a recording that only this user can read. Raises OSError."""
    for folder in (directory, directory.parent):
        disk.refuse_planted(folder)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    now_ms = time.time_ns() // 1_000_000
    second = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_ms // 1000))
    recording = directory / f"{second}.{now_ms % 1000:03}Z-{os.getpid()}"
    recording.mkdir(mode=0o700)
    return recording


def tidy(recording: Path) -> None:
    """Delete partial files of a process that was killed."""
    for path, _ in _files(recording):
        if path.suffix == ".part":
            with suppress(OSError):
                path.unlink()


def make_room(directory: Path, limit_bytes: int) -> None:
    """Delete what does not fit into so many bytes. The newest stay, and of each the report before the trace.

    Only what `begin` made is looked at. What cannot be deleted stays.
    """
    free_bytes = limit_bytes
    for recording in sorted(_recordings(directory), key=lambda path: path.name, reverse=True):
        for path, size in sorted(_files(recording), key=lambda file: (file[0].name != REPORT, file[0].name)):
            if size > free_bytes:
                with suppress(OSError):
                    path.unlink()
            else:
                free_bytes -= size
        # Only where it is empty.
        with suppress(OSError):
            recording.rmdir()


def remove(recording: Path) -> None:
    """Delete a recording, as far as that can be done."""
    shutil.rmtree(recording, ignore_errors=True)


def _recordings(directory: Path) -> Iterator[Path]:
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _files(recording: Path) -> Iterator[tuple[Path, int]]:
    with suppress(OSError), os.scandir(recording) as entries:
        for entry in entries:
            with suppress(OSError):
                yield Path(entry.path), entry.stat(follow_symlinks=False).st_size
