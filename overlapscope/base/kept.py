"""What is worked out once for each owner and lives as long as that does: the one way to keep such a thing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

Owner = TypeVar("Owner")
Key = TypeVarTuple("Key")
Made = TypeVar("Made")

_UNKNOWN: Final = object()


def kept(*, most: int | None = None) -> Callable[[Callable[[Owner, *Key], Made]], Callable[[Owner, *Key], Made]]:
    """Decorates a pure function of an owner and of hashable arguments: its answers are kept with the owner, which is
    known by identity and held weakly; of each owner all, or the `most` that were asked for last.

    Two threads that ask for the same at once may both have it made.
    """

    def decorate(make: Callable[[Owner, *Key], Made]) -> Callable[[Owner, *Key], Made]:
        answers: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()

        @functools.wraps(make)
        def ask(owner: Owner, *key: *Key) -> Made:
            known = answers.get(owner)
            if known is None:
                known = answers.setdefault(owner, {})
            answer: Any = known.get(key, _UNKNOWN)
            if answer is _UNKNOWN:
                answer = make(owner, *key)
            if most is not None:
                # The last one asked for stands last.
                known.pop(key, None)
                for oldest in list(known)[: len(known) + 1 - most]:
                    known.pop(oldest, None)
            known[key] = answer
            return answer  # type: ignore[no-any-return]

        return ask

    return decorate
