"""Replaces functions of torch, and of Python, by ours around them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import Any

Undo = Callable[[], object]


def around(owner: Any, name: str, call: Callable[..., Any]) -> Undo:
    """Replace a function or a method by `call(it, ...)`. What is returned puts it back, unless it was replaced again;
    one that was inherited is inherited then. A function of a module can still be pickled.
    """
    function, own = getattr(owner, name), vars(owner).get(name)

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        return call(function, *args, **options)

    if isinstance(owner, ModuleType):
        # Python's own functions, such as `os._exit`, state the module that they are written in.
        wrapped.__module__ = owner.__name__

    def undo() -> None:
        if vars(owner).get(name) is not wrapped:
            return
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    setattr(owner, name, wrapped)
    return undo


def before(owner: Any, name: str, call: Callable[..., None]) -> Undo:
    """Have `call(...)` called with its arguments before a function or a method. Returns as `around`."""

    def called(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        call(*args, **options)
        return function(*args, **options)

    return around(owner, name, called)


def before_making(kind: type, change: Callable[[Any, dict[str, Any]], object]) -> Undo:
    """Have `change(made, arguments)` called before an object of a class is made: it may change the arguments, which it
    gets by name. Returns as `around`.
    """

    def make(init: Callable[..., None], *args: Any, **options: Any) -> None:
        given = inspect.signature(init).bind(*args, **options)
        change(args[0], given.arguments)
        init(*given.args, **given.kwargs)

    return around(kind, "__init__", make)


def together(*undos: Undo) -> Undo:
    """What undoes all of them, the last first."""
    stack = ExitStack()
    for undo in undos:
        stack.callback(undo)
    return stack.close
