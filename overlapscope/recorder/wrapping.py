"""Wrapping functions of torch, and of Python, in ours."""

from __future__ import annotations

import functools
import inspect
import os
import signal
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

Undo = Callable[[], object]


def around(owner: Any, name: str, call: Callable[..., Any]) -> Undo:
    """Replace a function or a method of `owner` by `call(function, ...)`. A function of a module can still be pickled.

    Returns:
        A function that restores it, unless it was replaced again. An inherited method is inherited again.
    """
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        try:
            return call(function, *args, **options)
        except BaseException as error:
            leave_no_frame(error)
            raise

    if isinstance(owner, ModuleType):
        # Functions of Python, such as `os._exit`, name the module that defines them.
        wrapped.__module__ = owner.__name__
    undo = restoring(owner, name, wrapped)
    setattr(owner, name, wrapped)
    return undo


def restoring(owner: Any, name: str, wrapped: Callable[..., Any]) -> Undo:
    """Return a function that undoes the replacement of a function by `wrapped`, unless that was replaced again.

    It keeps neither of them: a class may be made for each training, and refer to its model. The replaced function, too,
    may refer to its owner, so `wrapped` holds it.
    """
    vars(wrapped)["replaced"] = vars(owner).get(name)
    kept, wrapped_reference = weakref.ref(owner), weakref.ref(wrapped)

    def undo() -> None:
        owner, wrapped = kept(), wrapped_reference()
        found = None if owner is None else vars(owner).get(name)
        if wrapped is None or getattr(found, "__func__", found) is not wrapped:
            return
        if (replaced := vars(wrapped)["replaced"]) is None:
            delattr(owner, name)
        else:
            setattr(owner, name, replaced)

    return undo


@contextmanager
def with_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside this context."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def leave_no_frame(error: BaseException) -> None:
    """Take our frames off the outer end of a traceback, before `raise` lets the exception go on to the program."""
    outer = error.__traceback__
    while outer is not None and outer.tb_frame.f_globals.get("__name__", "").startswith("overlapscope."):
        outer = outer.tb_next
    error.__traceback__ = outer


def is_a_handlers(error: BaseException) -> bool:
    """Return true if a signal handler of the program raised it, in the middle of our code: it is for the program."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    functions = [handler.func if isinstance(handler, functools.partial) else handler for handler in handlers]
    codes = [getattr(function, "__code__", None) for function in functions]
    codes += [getattr(type(function).__call__, "__code__", None) for function in functions if callable(function)]
    return any(frame.f_code is code for code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def before(owner: Any, name: str, call: Callable[..., None]) -> Undo:
    """Call `call(...)` with its arguments before a function or a method. Returns as `around` does."""

    def called(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        call(*args, **options)
        return function(*args, **options)

    return around(owner, name, called)


def before_making(kind: type, change: Callable[[Any, dict[str, Any]], object]) -> Undo:
    """Call `change(object, arguments)` before an object of a class is initialized.

    `change` may modify the arguments, which it receives by name.

    Returns:
        A function that ends this, as that of `around` does.
    """

    def make(init: Callable[..., None], *args: Any, **options: Any) -> None:
        arguments = inspect.signature(init).bind(*args, **options)
        change(args[0], arguments.arguments)
        init(*arguments.args, **arguments.kwargs)

    return around(kind, "__init__", make)


def together(*undos: Undo) -> Undo:
    """Return a function that undoes all of them, the last first."""
    stack = ExitStack()
    for undo in undos:
        stack.callback(undo)
    return stack.close
