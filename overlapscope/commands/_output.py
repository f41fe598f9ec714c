"""Output of commands to stdout, or to files that are not overwritten by accident."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.base import disk
from overlapscope.base.output import tell, write_output
from overlapscope.base.registry import load
from overlapscope.errors import UnreadableTrace, UsageError

if TYPE_CHECKING:
    from overlapscope.documents.model import Document


def check_output(output: Path | None, *, force: bool, inputs: Iterable[str | Path | None] = ()) -> None:
    """Check before the work that its result can be written and overwrites none of the inputs.

    Args:
        output: The file; None for stdout.
        force: Whether the file may be overwritten.
        inputs: Files, directories and patterns.

    Raises:
        UsageError: The result can't be written.
    """
    if output is None:
        return
    try:
        _check(output, force=force, inputs=inputs)
    except OSError as error:
        raise UsageError(f"{output}: cannot be written ({error.strerror or error}); choose another file.") from None


def _check(output: Path, *, force: bool, inputs: Iterable[str | Path | None]) -> None:
    if output.is_dir():
        raise UsageError(f"{output}: is a directory; name a file in it.")
    if disk.is_written_in_place(output):
        return
    if output.exists():
        if not force:
            raise UsageError(f"{output}: already exists; use --force to overwrite it.")
        for source in inputs:
            if source is not None and any(path.exists() and path.samefile(output) for path in _files(source)):
                raise UsageError(
                    f"{output}: is also an input ({source}) and would be overwritten; choose another file."
                )
        if not os.access(output, os.W_OK):
            raise UsageError(f"{output}: is not writable; choose another file.")
    directory = Path(os.path.realpath(output)).parent
    if not directory.is_dir():
        raise UsageError(f"{output}: the directory {directory} does not exist; create it first.")
    if not os.access(directory, os.W_OK):
        raise UsageError(f"{output}: the directory {directory} is not writable; choose another.")


def _files(named: str | Path) -> list[Path]:
    # Before a program runs, no module that it may import is imported for it.
    if os.path.isfile(named):
        return [Path(named)]
    from overlapscope.reading import expand
    from overlapscope.reading.file_names import file_and_part

    try:
        return [file_and_part(path)[0] for path in expand([named])]
    except UnreadableTrace:
        # Reading the input raises this error again.
        return []


def make_directory(directory: Path) -> None:
    """Create a directory for output if it doesn't exist. Raises UsageError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory}: cannot be created ({error.strerror or error}); choose another.") from None


def same_file(path: Path, other: Path) -> bool:
    """Return whether two outputs would be the same file."""
    return os.path.realpath(path) == os.path.realpath(other) and not disk.is_written_in_place(path)


def drawn(document: Document, args: argparse.Namespace, *, verbose: bool = True) -> bytes:
    """Return a document in `args.format`, for `args.output` or for stdout.

    Text and markdown use the short form (`brief`) unless `verbose`.
    """
    if not verbose and args.format in ("text", "markdown"):
        from overlapscope.documents.model import brief

        document = brief(document)
    if args.format == "text":
        from overlapscope.render import terminal

        return terminal.to_stream(document, None if args.output else sys.stdout)
    draw: Callable[[Document], str] = load(f"overlapscope.render.{args.format}:render")
    return draw(document).encode("utf-8", "replace")


def present(
    result: object, document: Callable[[], Document], args: argparse.Namespace, *, verbose: bool = True
) -> None:
    """Write a result as JSON, or its document in another `args.format`, to `args.output` or stdout."""
    if args.format == "json":
        from overlapscope.base.saved import encode

        data = encode(result)
    else:
        data = drawn(document(), args, verbose=verbose)
    write(data, args.output, force=args.force)


def write(data: bytes, output: Path | None, *, force: bool = False) -> None:
    """Write to a file and report this on stderr, or write to stdout."""
    if output is None:
        write_output(data)
    else:
        write_file([data], output, force=force)


def write_file(blocks: Iterable[bytes], output: Path, *, force: bool = False) -> None:
    """Write to a file block by block, and report this on stderr."""
    try:
        disk.write(output, blocks, over=force)
    except FileExistsError:
        raise UsageError(f"{output}: already exists; use --force to overwrite it.") from None
    except OSError as error:
        unchanged = " and is unchanged" if output.is_file() else ""
        reason = error.strerror or error
        raise UsageError(f"{output}: cannot be written ({reason}){unchanged}; choose another file.") from None
    tell(f"Wrote {os.fsencode(output).decode(errors='backslashreplace')}")
