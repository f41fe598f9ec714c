"""Replaces functions of torch by ours around them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def around(owner: Any, name: str, call: Callable[..., Any]) -> Callable[[], None]:
    """Replace a function or a method by `call(it, ...)`. What is returned puts it back, unless it was replaced."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        return call(function, *args, **options)

    def undo() -> None:
        if getattr(owner, name) is wrapped:
            setattr(owner, name, function)

    setattr(owner, name, wrapped)
    return undo
