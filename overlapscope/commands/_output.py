"""Where a command's output goes: stdout, or a file that is not overwritten by accident."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from overlapscope.errors import UsageError


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """`--output` and `--force`."""
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to FILE instead of stdout")
    parser.add_argument("-f", "--force", action="store_true", help="overwrite FILE if it exists")


def check_output(output: Path | None, *, force: bool) -> None:
    """Find out before the work, not after it, that its result could not be kept. Raises UsageError."""
    if output is None:
        return
    if output.is_dir():
        raise UsageError(f"{output}: is a directory; name a file in it.")
    if output.exists() and not force:
        raise UsageError(f"{output}: exists, will not overwrite it without --force.")
    if not output.parent.is_dir():
        raise UsageError(f"{output}: there is no directory {output.parent}; create it first.")


def write(data: bytes, output: Path | None, *, force: bool = False) -> None:
    """Write to the file, and say so on stderr; or to stdout."""
    if output is None:
        _to_stdout(data)
    else:
        write_file([data], output, force=force)


def write_file(blocks: Iterable[bytes], output: Path, *, force: bool = False) -> None:
    """Write to the file, block by block, and say so on stderr."""
    try:
        with open(output, "wb" if force else "xb") as file:
            file.writelines(blocks)
    except FileExistsError:
        raise UsageError(f"{output}: exists, will not overwrite it without --force.") from None
    except OSError as error:
        raise UsageError(f"{output}: cannot be written ({error.strerror or error}); choose another file.") from None
    print(f"Wrote {os.fsencode(output).decode(errors='backslashreplace')}", file=sys.stderr)


def _to_stdout(data: bytes) -> None:
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        # A replaced stdout, as of a notebook, takes text only.
        sys.stdout.write(data.decode("utf-8", "replace"))
        return
    try:
        sys.stdout.flush()
        buffer.write(data)
        buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # Nothing must be flushed into it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise UsageError(f"the output cannot be written ({error.strerror or error}); send it elsewhere.") from None
