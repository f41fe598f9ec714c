"""Writing edits to the program's files, all or none, with the originals kept beside them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from overlapscope.base import disk, words
from overlapscope.errors import UsageError
from overlapscope.plugins.trials.edit import File


def write(files: Sequence[File]) -> None:
    """Write the edited files; `train.py.orig` keeps each original with its permissions.

    Nothing is changed on an error.

    Raises:
        UsageError: A file has changed since its edit was made, or an original exists already.
        OSError: A file can't be written.
    """
    for file in files:
        if disk.read_regular(file.path) != file.before:
            raise UsageError(f"{_name(file.path)} has changed since its edit was made; run `overlapscope try` again.")
    check_originals(files)
    begun: list[File] = []
    try:
        for file in files:
            disk.write(original(file), [file.before], over=False)
            begun.append(file)
            shutil.copymode(file.path, original(file))
            disk.write(file.path, [file.after])
    except BaseException:
        undo(begun)
        raise


def check_originals(files: Sequence[File]) -> None:
    """Raise UsageError if an original exists already."""
    for file in files:
        if os.path.lexists(original(file)):
            raise UsageError(f"{_name(original(file))} is there already; move it away, or remove it.")


def undo(files: Sequence[File]) -> None:
    """Restore the files and remove the originals. A file changed meanwhile stays, with its original. Raises OSError."""
    for file in files:
        now = disk.read_regular(file.path)
        if now == file.after:
            disk.write(file.path, [file.before])
        if now in (file.before, file.after):
            original(file).unlink(missing_ok=True)


def original(file: File) -> Path:
    """Return the path of a file's original."""
    return file.path.with_name(f"{file.path.name}.orig")


def _name(path: Path) -> str:
    return words.clean(os.path.relpath(path))
