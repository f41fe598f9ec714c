"""Results kept during a session, for tests, which work on the same few files again and again.

A result that refers to its owner, as an analysis refers to its trace, can't be kept by `base.kept`, because neither
would ever be freed. A session keeps both until it ends. Without a session nothing is kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from overlapscope import analysis, reading, timeline
from overlapscope.prediction import plain_program
from overlapscope.reading.source import ReadRequest
from overlapscope.rules import findings
from overlapscope.trace.model import Trace

_MISSING: Final = object()


class _Session(NamedTuple):
    """Files and results of a session."""

    folders: tuple[Path, ...]
    results: dict[tuple[Hashable, ...], Any]
    held: dict[int, object]
    """Identities of the values of `results`, each of which may own further results."""

    def once(self, key: tuple[Hashable, ...], make: Callable[[], Any]) -> Any:
        """Return the result with this key, and compute it if necessary.

        Two threads that ask at the same time may both compute it.
        """
        result = self.results.get(key, _MISSING)
        if result is _MISSING:
            result = self.results[key] = make()
            self.held[id(result)] = result
        return result


_sessions: Final[list[_Session]] = []
"""Active sessions, the innermost last."""


@contextmanager
def session(*folders: Path) -> Iterator[None]:
    """Read each file in these folders once, and keep its results until the end of the block.

    The files must not change meanwhile. An inner session starts empty.
    """
    current = _Session(tuple(folder.absolute() for folder in folders), {}, {})
    _sessions.append(current)
    try:
        yield
    finally:
        _sessions.remove(current)


# -- What a session keeps ---------------------------------------------------------------------------


def _kept(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a pure function of an owner and of hashable arguments, so that a session keeps its results.

    A session keeps the results of owners that it knows: traces that it read, and results of other such functions.
    """

    @functools.wraps(make)
    def ask(owner: object, *key: Hashable) -> Any:
        if not _sessions or id(owner) not in _sessions[-1].held:
            return make(owner, *key)
        return _sessions[-1].once((make, id(owner), *key), lambda: make(owner, *key))

    return ask


def _read_once(read: Callable[[Path, ReadRequest, bool], Trace]) -> Callable[[Path, ReadRequest, bool], Trace]:
    """Wrap the function that reads a file, so that a session that includes the file calls it once.

    The result may depend on the path as written, and on the limit.
    """

    def ask(path: Path, request: ReadRequest, cache: bool) -> Any:
        absolute = path.absolute()
        if not _sessions or not any(absolute.is_relative_to(folder) for folder in _sessions[-1].folders):
            return read(path, request, cache)
        key = read, absolute, str(path), request.limit_bytes
        return _sessions[-1].once(key, lambda: read(path, request, cache))

    return ask


vars(reading)["_read_or_cached"] = _read_once(reading._read_or_cached)
for _module, _function in (
    (analysis, "_analyze"),
    (plain_program, "replay_plain"),
    (findings, "_on_device"),
    (timeline, "build"),
):
    vars(_module)[_function] = _kept(vars(_module)[_function])
