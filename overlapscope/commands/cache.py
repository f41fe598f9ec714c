"""`overlapscope cache`."""

from __future__ import annotations

import argparse

from overlapscope.commands import DONE
from overlapscope.commands._options import add_actions, add_format
from overlapscope.commands._output import write
from overlapscope.errors import UsageError


class CacheCommand:
    """Show or clear the cache of large traces: a trace that was read before
    opens in a moment.

    A copy of a trace, or one that was changed, is read again. Clearing the
    cache costs only the time to read the traces again.

    OVERLAPSCOPE_CACHE_DIR sets the folder, OVERLAPSCOPE_CACHE_SIZE the limit
    (such as 20GB; 0 turns the cache off).
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_action = add_actions(parser)
        add_format(add_action("info", "show where the cache is, what it holds, and whether it works"), ("text", "json"))
        add_action("clear", "remove everything from the cache, and show how much that was")

    def run(self, args: argparse.Namespace) -> int:
        return _clear() if args.action == "clear" else _info(args.format)


def _info(format: str) -> int:
    from overlapscope.base.saved import encode
    from overlapscope.base.words import clean, plural, size
    from overlapscope.reading.cache import MIN_BYTES
    from overlapscope.reading.cache_folder import describe

    state = describe()
    if format == "json":
        write(encode(state), None)
        return DONE
    rows = [("folder", clean(state.folder or "none"))]
    if state.entries is not None and state.bytes is not None:
        rows.append(("holds", f"{plural(state.entries, 'trace')}, {size(state.bytes)}"))
    rows.append(("limit", size(state.limit_bytes)))
    if state.free_bytes is not None:
        rows.append(("free", f"{size(state.free_bytes)} on this disk"))
    widest = max(len(name) for name, _ in rows)
    works = f"The cache stores traces of {size(MIN_BYTES)} or more (unpacked)."
    closing = clean(state.problem) if state.problem else works
    return _print(*(f"{name:<{widest}}  {value}" for name, value in rows), "", closing)


def _clear() -> int:
    from overlapscope.base.words import clean, plural, size
    from overlapscope.reading.cache_folder import Folder, default_folder

    path = default_folder()
    if path is None:
        raise UsageError(
            "there is no cache, because this user has no home folder; set OVERLAPSCOPE_CACHE_DIR to a folder."
        )
    try:
        removed = Folder(path).clear()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be cleared ({error.strerror or error}); check the folder's permissions."
        ) from None
    entries = sum(file.is_entry for file in removed)
    total = sum(file.bytes for file in removed)
    shown = clean(str(path))
    message = f"Removed {plural(entries, 'trace')}, {size(total)}, from {shown}" if removed else f"{shown} was empty."
    return _print(message)


def _print(*lines: str) -> int:
    write(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"), None)
    return DONE
