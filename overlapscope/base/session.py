"""Results kept during a session, for a process that works on the same few files again and again, as tests do.

A result that refers to its owner, as an analysis refers to its trace, can't be kept by `kept`, because neither would
ever be freed. A session keeps both until it ends. Without a session nothing is kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple

from msgspec import Struct, field

Owner = TypeVar("Owner")
Key = TypeVarTuple("Key")
Made = TypeVar("Made")

_MISSING: Final = object()


class _Session(Struct, frozen=True, eq=False):
    """Files and results of a session."""

    folders: tuple[Path, ...]
    results: dict[tuple[Hashable, ...], Any] = field(default_factory=dict)
    held: dict[int, object] = field(default_factory=dict)
    """Identities of the values of `results`, each of which may own further results."""

    def once(self, key: tuple[Hashable, ...], make: Callable[[], Made]) -> Made:
        """Return the result with this key, and compute it if necessary.

        Two threads that ask at the same time may both compute it.
        """
        result: Any = self.results.get(key, _MISSING)
        if result is _MISSING:
            result = self.results[key] = make()
            self.held[id(result)] = result
        return result  # type: ignore[no-any-return]


_sessions: Final[list[_Session]] = []
"""Active sessions, the innermost last."""


@contextmanager
def session(*folders: Path) -> Iterator[None]:
    """Read each file in these folders once, and keep its results until the end of the block.

    The files must not change meanwhile. An inner session starts empty.
    """
    current = _Session(tuple(folder.absolute() for folder in folders))
    _sessions.append(current)
    try:
        yield
    finally:
        _sessions.remove(current)


def read_once(path: Path, limit_bytes: int, read: Callable[[], Made]) -> Made:
    """Return the result of `read` for a file; a session that includes the file calls it once.

    The result may depend on the path as written, and on the limit.
    """
    absolute = path.absolute()
    if not _sessions or not any(absolute.is_relative_to(folder) for folder in _sessions[-1].folders):
        return read()
    return _sessions[-1].once((read_once, absolute, str(path), limit_bytes), read)


def kept_in_session(make: Callable[[Owner, *Key], Made]) -> Callable[[Owner, *Key], Made]:
    """Decorate a pure function of an owner and of hashable arguments, so that a session keeps its results.

    A session keeps the results of owners that it knows: traces that it read, and results of other such functions.

    Returns:
        The function, which looks in the session first.
    """

    @functools.wraps(make)
    def ask(owner: Owner, *key: *Key) -> Made:
        if not _sessions or id(owner) not in _sessions[-1].held:
            return make(owner, *key)
        return _sessions[-1].once((make, id(owner), *key), lambda: make(owner, *key))

    return ask
