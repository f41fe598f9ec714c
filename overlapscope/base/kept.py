"""Results computed once for each owner, and kept as long as the owner lives."""

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
    """Decorate a pure function of an owner and of hashable arguments, to keep its results with the owner.

    The owner is identified by identity and held weakly. For each owner all results are kept, or the `most` results used
    last. Two threads that ask for the same result at once may both compute it.

    Returns:
        The decorator.
    """

    def decorate(make: Callable[[Owner, *Key], Made]) -> Callable[[Owner, *Key], Made]:
        answers: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()

        @functools.wraps(make)
        def ask(owner: Owner, *key: *Key) -> Made:
            results = answers.get(owner)
            if results is None:
                results = answers.setdefault(owner, {})
            answer: Any = results.get(key, _UNKNOWN)
            if answer is _UNKNOWN:
                answer = make(owner, *key)
            if most is not None:
                # The result used last stands last.
                results.pop(key, None)
                for oldest in list(results)[: len(results) + 1 - most]:
                    results.pop(oldest, None)
            results[key] = answer
            return answer  # type: ignore[no-any-return]

        return ask

    return decorate
