"""Watches a program for what may end its steps: optimizers, `backward`, modules, loaders, CUDA graphs and ranges."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Collection
from contextlib import ExitStack
from pathlib import PurePath
from types import CodeType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from overlapscope.recorder.step_choice import SourceKind, StepSource
from overlapscope.recorder.wrapping import Undo, around

if TYPE_CHECKING:
    from torch.optim import Optimizer

_Value = TypeVar("_Value")

_WRAPPERS = ("_orig_mod", "module")
"""Attributes under which `torch.compile`, DistributedDataParallel and others keep the module that they wrap."""


class StepSources:
    """Calls `happened(source)` for each event between `start` and `stop`, on the thread where it happens.

    `stop` undoes all changes to the program. Code that torch compiles is not seen.
    """

    def __init__(self, happened: Callable[[StepSource], None]) -> None:
        self._happened = happened
        self._watched: dict[SourceKind, Undo] = {}
        self._sources: dict[tuple[SourceKind, object], StepSource] = {}
        self._optimizers = _Optimizers(self._optimizer_stepped)

    def start(self, kinds: Collection[SourceKind]) -> None:
        """Watch these kinds. Imports torch."""
        starts: dict[SourceKind, Callable[[], Undo]] = {
            SourceKind.OPTIMIZER: self._optimizers.start,
            SourceKind.BACKWARD: self._watch_backward,
            SourceKind.FORWARD: lambda: _watch_calls(self._called),
            SourceKind.LOADER: self._watch_loaders,
            SourceKind.GRAPH: self._watch_graphs,
            SourceKind.RANGE: self._watch_ranges,
        }
        for kind in kinds:
            self._watched[kind] = starts[kind]()

    def stop(self, *, but: SourceKind | None = None) -> None:
        """Watch no more, or only one kind."""
        for kind in [kind for kind in self._watched if kind is not but]:
            self._watched.pop(kind)()

    def _tell(
        self, kind: SourceKind, key: object, name: Callable[[], str], size: Callable[[], int] = lambda: 0
    ) -> None:
        source = self._sources.get((kind, key))
        if source is None:
            source = self._sources[kind, key] = StepSource(kind, _or(name, kind.name.lower()), _or(size, 0))
        self._happened(source)

    def _optimizer_stepped(self, optimizer: Optimizer) -> None:
        self._tell(SourceKind.OPTIMIZER, id(optimizer), lambda: f"{type(optimizer).__name__}.step")

    def _watch_backward(self) -> Undo:
        import torch

        method = torch.Tensor.backward.__code__

        def called(backward: Callable[..., Any], *args: Any, **options: Any) -> Any:
            result = backward(*args, **options)
            frame: Any = sys._getframe(1)
            # Others of ours may watch it, too.
            while frame.f_code is method or frame.f_globals.get("__name__", "").startswith("overlapscope."):
                frame = frame.f_back
            line = frame.f_code.co_filename, frame.f_lineno
            self._tell(SourceKind.BACKWARD, line, lambda: f"backward() in {PurePath(line[0]).name}:{line[1]}")
            return result

        return around(torch.autograd, "backward", called)

    def _called(self, module: Any) -> None:
        self._tell(SourceKind.FORWARD, id(module), lambda: f"{_class_name(module)}.forward", lambda: _size(module))

    def _watch_loaders(self) -> Undo:
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        def called(get: Callable[..., Any], iterator: Any) -> Any:
            batch = get(iterator)
            self._tell(
                SourceKind.LOADER, id(iterator._dataset), lambda: f"a DataLoader of {type(iterator._dataset).__name__}"
            )
            return batch

        return around(_BaseDataLoaderIter, "__next__", called)

    def _watch_graphs(self) -> Undo:
        import torch

        def called(replay: Callable[..., Any], graph: Any) -> Any:
            result = replay(graph)
            self._tell(SourceKind.GRAPH, id(graph), lambda: "CUDAGraph.replay")
            return result

        return around(torch.cuda.CUDAGraph, "replay", called)

    def _watch_ranges(self) -> Undo:
        from torch.profiler import record_function

        def left(leave: Callable[..., Any], range: Any, *error: Any) -> Any:
            result = leave(range, *error)
            if not range.name.startswith("ProfilerStep#"):
                self._tell(SourceKind.RANGE, range.name, lambda: range.name)
            return result

        return around(record_function, "__exit__", left)


def _or(function: Callable[[], _Value], otherwise: _Value) -> _Value:
    """Return what a function returns, or `otherwise` if it raises: a program's classes may be of any kind."""
    try:
        return function()
    except Exception:
        return otherwise


def _class_name(module: Any) -> str:
    for attribute in _WRAPPERS:
        # TorchScript's dictionary of modules has no `get`.
        module = module._modules[attribute] if attribute in module._modules else module  # noqa: SIM401
    return type(module).__name__


def _size(module: Any) -> int:
    from torch.nn import Module
    from torch.nn.parameter import is_lazy

    # Some classes have another `parameters` of their own.
    parameters: Any = Module.parameters(module)
    return sum(parameter.numel() for parameter in parameters if not is_lazy(parameter))


class _Optimizers:
    """Calls `stepped(optimizer)` when an optimizer's step has returned.

    torch calls its hooks while its range of the step is open, and a profiler's stop would be part of that range. So a
    hook wraps the `step` of each optimizer at its first call. Only that call, and a call that bypasses the wrapper, are
    noted by the hook.
    """

    def __init__(self, stepped: Callable[[Optimizer], None]) -> None:
        self._stepped = stepped
        self._wrapped: weakref.WeakKeyDictionary[Optimizer, list[int]] = weakref.WeakKeyDictionary()
        """Number of the wrapper's calls that are under way, and of the steps that the hook saw in them."""
        self._undo = ExitStack()
        self._on = self._in_hook = False

    def start(self) -> Undo:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._on = True
        self._undo.callback(register_optimizer_step_post_hook(self._on_step).remove)
        return self._stop

    def _stop(self) -> None:
        self._on = False
        self._wrapped.clear()
        # While torch goes through its hooks, none may be removed.
        if not self._in_hook:
            self._undo.close()

    def _on_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        import torch

        # Anything else would break the graph of a compiled step; such steps do not count.
        if not self._on or torch.compiler.is_compiling():
            return
        calls = self._wrapped.get(optimizer)
        if calls is not None and calls[0]:
            calls[1] += 1
            return
        if calls is None:
            self._wrap(optimizer)
        self._in_hook = True
        try:
            self._stepped(optimizer)
        finally:
            self._in_hook = False

    def _wrap(self, optimizer: Optimizer) -> None:
        step, own = optimizer.step, vars(optimizer).get("step")
        calls = self._wrapped[optimizer] = [0, 0]
        kept = weakref.ref(optimizer)

        @functools.wraps(step)
        def wrapped(optimizer: Optimizer, *args: Any, **options: Any) -> Any:
            calls[0] += 1
            try:
                result = step(*args, **options)
            finally:
                calls[0] -= 1
                seen, calls[1] = calls[1], 0
            if seen and self._on:
                self._stepped(optimizer)
            elif not self._on:
                self._undo.close()
            return result

        # The bound method refers to the optimizer, which the program may drop before this is undone.
        vars(wrapped)["own"] = own
        ours = weakref.ref(wrapped)

        def undo() -> None:
            optimizer, function = kept(), ours()
            if optimizer is None or getattr(vars(optimizer).get("step"), "__func__", None) is not function:
                return
            if (own := vars(function)["own"]) is None:
                del optimizer.step
            else:
                optimizer.step = own  # type: ignore[method-assign]

        # Schedulers of learning rates wrap a method.
        optimizer.step = MethodType(wrapped, optimizer)  # type: ignore[method-assign]
        self._undo.callback(undo)


# -- calls of modules ------------------------------------------------------------------------------------

_CALL = """
def _wrapped_call_impl(self, *args, **kwargs):
    if not torch.compiler.is_compiling(): "noted"(self)
    if self._compiled_call_impl is not None:
        return self._compiled_call_impl(*args, **kwargs)
    else:
        return self._call_impl(*args, **kwargs)
"""
"""torch's code for the call of a module, after our line."""


_listeners: list[Callable[[Any], None]] = []


def _watch_calls(called: Callable[[Any], None]) -> Undo:
    """Have `called(module)` called before each call of a module that is inside no other one's."""
    if not _listeners:
        _undo_calls.callback(_note_calls(_tell_listeners))
    _listeners.append(called)

    def undo() -> None:
        _listeners.remove(called)
        if not _listeners:
            _undo_calls.close()

    return undo


_undo_calls = ExitStack()


def _tell_listeners(module: Any) -> None:
    for called in tuple(_listeners):
        called(module)


def _note_calls(called: Callable[[Any], None]) -> Undo:
    """Replace torch's code for the call of a module, for all who watch.

    The code of `Module.__call__` is replaced, and the function stays. As long as that is the same, torch.compile traces
    and guards `forward` alone. If there were hooks for all modules, it would compile again when they are removed.
    If torch's code is not the expected one, no call is seen.
    """
    import torch
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    function: Any = torch.nn.Module._wrapped_call_impl
    theirs: CodeType = function.__code__
    # A call of a module in `backward`, or by a data set, does not make a step.
    outer = torch.nn.Module._call_impl, torch.autograd.backward, _BaseDataLoaderIter.__next__
    call, backward, fetch = (getattr(function, "__wrapped__", function).__code__ for function in outer)

    def noted(module: Any) -> None:
        frame: Any = sys._getframe(2)
        while frame is not None:
            # Python 3.12 takes 5 us to look code up in a set.
            code = frame.f_code
            if code is call or code is backward or code is fetch:
                return
            frame = frame.f_back
        called(module)

    unchanged, ours = _call_code(theirs, None), _call_code(theirs, noted)
    if (unchanged.co_code, unchanged.co_names) != (theirs.co_code, theirs.co_names):
        return lambda: None
    function.__code__ = ours

    def undo() -> None:
        if function.__code__ is ours:
            function.__code__ = theirs

    return undo


def _call_code(theirs: CodeType, noted: Callable[[Any], None] | None) -> CodeType:
    import warnings

    lines = _CALL.splitlines(keepends=True)
    with warnings.catch_warnings():
        # A string cannot be called.
        warnings.simplefilter("ignore", SyntaxWarning)
        module = compile("".join(line for line in lines if noted or "noted" not in line), theirs.co_filename, "exec")
    code = next(constant for constant in module.co_consts if isinstance(constant, CodeType))
    return code.replace(
        co_consts=tuple(noted if constant == "noted" else constant for constant in code.co_consts),
        co_firstlineno=theirs.co_firstlineno,
        co_qualname=theirs.co_qualname,
    )
