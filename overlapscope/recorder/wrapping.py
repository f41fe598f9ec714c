"""Replaces functions of torch, and of Python, by ours around them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def around(owner: Any, name: str, call: Callable[..., Any]) -> Callable[[], None]:
    """Replace a function or a method by `call(it, ...)`. What is returned puts it back, unless it was replaced again;
    one that was inherited is inherited then.
    """
    function, own = getattr(owner, name), vars(owner).get(name)

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        return call(function, *args, **options)

    def undo() -> None:
        if vars(owner).get(name) is not wrapped:
            return
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    setattr(owner, name, wrapped)
    return undo


def before(owner: Any, name: str, call: Callable[..., None]) -> Callable[[], None]:
    """Have `call(...)` called with its arguments before a function or a method. Returns as `around`."""

    def called(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        call(*args, **options)
        return function(*args, **options)

    return around(owner, name, called)
