"""Watches a program for what may end its steps: optimizers, `backward`, modules, loaders, CUDA graphs and ranges."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import warnings
import weakref
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import PurePath
from types import CodeType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from overlapscope.base.marks import STEP
from overlapscope.recorder.program_lines import UNKNOWN, CodeLine, lines
from overlapscope.recorder.step_choice import SourceKind, StepSource
from overlapscope.recorder.wrapping import Undo, around, leave_no_frame, restoring

if TYPE_CHECKING:
    from torch.optim import Optimizer


_Value = TypeVar("_Value")

_WRAPPERS = ("_orig_mod", "module")
"""Attributes under which `torch.compile`, DistributedDataParallel and others keep the module that they wrap."""


_MIN_STEPS_BEFORE_SUCCESSOR = 8
"""Steps of an optimizer in a row after which another of its class may take its place."""
_MIN_STEPS_OF_SUCCESSOR = 20
"""First steps of an optimizer in a row which show that it has taken the place."""


@dataclass(slots=True, eq=False)
class _Stepping:
    """An optimizer that has stepped."""

    optimizer: weakref.ref[Optimizer]
    source: StepSource
    before: _Stepping | None = None
    """The optimizer whose place it seems to have taken."""
    row: int = 0
    """Number of its latest steps without any of another."""


class StepSources:
    """Calls `happened(source)` for each event between `start` and `stop`, on the thread where it happens.

    `stop` undoes all changes to the program. Code that torch compiles is not seen.
    """

    def __init__(self, happened: Callable[[StepSource], None]) -> None:
        self._happened = happened
        self._watched: dict[SourceKind, Undo] = {}
        self._sources: dict[tuple[SourceKind, object], StepSource] = {}
        self._stepping: dict[int, _Stepping] = {}
        """By the optimizer's id, which a later one may have."""
        self._gone: list[_Stepping] = []
        """Those that the program has dropped, and that none has replaced."""
        self._successors: list[_Stepping] = []
        """Those that seem to have taken the place of another, which may still step again."""
        self._latest: _Stepping | None = None
        self._optimizers = OptimizerSteps(self._optimizer_stepped)

    def start(self, kinds: Collection[SourceKind]) -> None:
        """Watch these kinds. Imports torch."""
        import torch
        from torch.profiler import record_function
        from torch.utils.data.dataloader import _BaseDataLoaderIter as Loader

        returns: dict[SourceKind, tuple[Any, str, Callable[..., object], Callable[..., str]]] = {
            SourceKind.BACKWARD: (
                torch.autograd,
                "backward",
                lambda *_: _line(),
                lambda *_: f"backward() in {PurePath(_line().file).name}:{_line().number}",
            ),
            SourceKind.LOADER: (
                Loader,
                "__next__",
                lambda loader: id(loader._dataset),
                lambda loader: f"a DataLoader of {type(loader._dataset).__name__}",
            ),
            SourceKind.GRAPH: (torch.cuda.CUDAGraph, "replay", id, lambda _: "CUDAGraph.replay"),
            SourceKind.RANGE: (
                record_function,
                "__exit__",
                lambda range, *_: None if range.name.startswith(STEP) else range.name,
                lambda range, *_: range.name,
            ),
        }
        for kind in kinds:
            if kind is SourceKind.OPTIMIZER:
                self._watched[kind] = self._optimizers.start()
            elif kind is SourceKind.FORWARD:
                self._watched[kind] = _watch_calls(self._called)
            else:
                self._watched[kind] = self._watch_returns(kind, *returns[kind])

    def stop(self, *, but: SourceKind | None = None) -> None:
        """Stop watching, except for one kind if given."""
        for kind in [kind for kind in self._watched if kind is not but]:
            self._watched.pop(kind)()

    def _tell(
        self, kind: SourceKind, key: object, name: Callable[[], str], size: Callable[[], int] = lambda: 0
    ) -> None:
        source = self._sources.get((kind, key))
        if source is None:
            source = self._sources[kind, key] = StepSource(
                kind, _or_default(name, kind.name.lower()), _or_default(size, 0)
            )
        self._happened(source)

    def _optimizer_stepped(self, optimizer: Optimizer) -> None:
        one = self._stepping.get(id(optimizer))
        if one is None or one.optimizer() is not optimizer:
            one = self._stepping[id(optimizer)] = self._new(optimizer)
        if self._latest is not one:
            self._latest, one.row = one, 0
            for other in [other for other in self._successors if other.before is one]:
                # They step in turn.
                self._successors.remove(other)
                other.source = StepSource(SourceKind.OPTIMIZER, other.source.name)
        one.row += 1
        if one.row == _MIN_STEPS_OF_SUCCESSOR and one in self._successors:
            self._successors.remove(one)
        self._happened(one.source)

    def _new(self, optimizer: Optimizer) -> _Stepping:
        """Note an optimizer. If it replaces one of its class, as in a cross-validation, it is the same source."""
        name = f"{type(optimizer).__name__}.step"
        for key, other in list(self._stepping.items()):
            if other.optimizer() is None:
                self._gone.append(self._stepping.pop(key))
        gone = next((other for other in self._gone if other.source.name == name), None)
        if gone is not None:
            self._gone.remove(gone)
            return _Stepping(weakref.ref(optimizer), gone.source)
        latest = self._latest
        if latest is None or latest.row < _MIN_STEPS_BEFORE_SUCCESSOR or latest.source.name != name:
            return _Stepping(weakref.ref(optimizer), StepSource(SourceKind.OPTIMIZER, name))
        self._successors.append(_Stepping(weakref.ref(optimizer), latest.source, latest))
        return self._successors[-1]

    def _called(self, module: Any) -> None:
        self._tell(SourceKind.FORWARD, id(module), lambda: f"{_class_name(module)}.forward", lambda: _size(module))

    def _watch_returns(
        self, kind: SourceKind, owner: Any, method: str, key: Callable[..., object], name: Callable[..., str]
    ) -> Undo:
        """Watch the returns of a method, whose arguments tell key and name of the source; without a key, it is none."""

        def called(function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            if (which := key(*args)) is not None:
                self._tell(kind, which, lambda: name(*args))
            return result

        return around(owner, method, called)


def _line() -> CodeLine:
    return next(lines(sys._getframe()), UNKNOWN)


def _or_default(function: Callable[[], _Value], otherwise: _Value) -> _Value:
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


# -- calls of modules ------------------------------------------------------------------------------------

_NOTED = "if not torch.compiler.is_compiling(): 'noted'(self)"
"""Our line in torch's code for the call of a module."""


_listeners: list[Callable[[Any], None]] = []


def _watch_calls(called: Callable[[Any], None]) -> Undo:
    """Have `called(module)` called before each call of a module that is inside no other one's."""
    if not _listeners:
        _undo_calls.callback(_note_calls())
    _listeners.append(called)

    def undo() -> None:
        _listeners.remove(called)
        if not _listeners:
            _undo_calls.close()

    return undo


_undo_calls = ExitStack()


def _note_calls() -> Undo:
    """Replace torch's code for the call of a module, for all who watch.

    The code of `Module.__call__` is replaced, and the function stays. As long as that is the same, torch.compile traces
    and guards `forward` alone. If there were hooks for all modules, it would compile again when they are removed.
    If the file of torch's code is missing or another, no call is seen.

    Returns:
        A function that restores torch's code.
    """
    import torch
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    # The program may have replaced each by an object without code.
    function: Any = torch.nn.Module._wrapped_call_impl
    torch_code: CodeType | None = getattr(function, "__code__", None)
    # A call of a module in `backward`, or by a data set, does not make a step.
    outer = torch.nn.Module._call_impl, torch.autograd.backward, _BaseDataLoaderIter.__next__
    call, backward, fetch = (getattr(getattr(each, "__wrapped__", each), "__code__", None) for each in outer)

    def noted(module: Any) -> None:
        frame: Any = sys._getframe(2)
        while frame is not None:
            # Python 3.12 takes 5 us to look code up in a set.
            code = frame.f_code
            if code is call or code is backward or code is fetch:
                return
            frame = frame.f_back
        for called in tuple(_listeners):
            called(module)

    unchanged = None if torch_code is None else _compiled(torch_code, [])
    if (
        torch_code is None
        or unchanged is None
        or (unchanged.co_code, unchanged.co_names) != (torch_code.co_code, torch_code.co_names)
    ):
        return lambda: None
    with warnings.catch_warnings():
        # A string cannot be called.
        warnings.simplefilter("ignore", SyntaxWarning)
        changed_code = _compiled(torch_code, ast.parse(_NOTED).body)
    assert changed_code is not None
    changed_code = changed_code.replace(
        co_consts=tuple(noted if constant == "noted" else constant for constant in changed_code.co_consts)
    )
    function.__code__ = changed_code

    def undo() -> None:
        if function.__code__ is changed_code:
            function.__code__ = torch_code

    return undo


def _compiled(code_of_method: CodeType, first: list[ast.stmt]) -> CodeType | None:
    """Compile the source of a method's code, with further statements before its own.

    The lines and columns stay those of the source, so that they are right in tracebacks.

    Returns:
        The code; None if its source is missing.
    """
    try:
        # A method's lines are indented.
        module = ast.parse(f"class _:\n{inspect.getsource(code_of_method)}")
    except (OSError, SyntaxError):
        return None
    method: Any = next((node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)), None)
    if method is None:
        return None
    for statement in first:
        for node in ast.walk(statement):
            ast.copy_location(node, method)
    method.body[:0] = first
    ast.increment_lineno(module, code_of_method.co_firstlineno - method.lineno)
    body = next(
        code for code in compile(module, code_of_method.co_filename, "exec").co_consts if isinstance(code, CodeType)
    )
    code = next(constant for constant in body.co_consts if isinstance(constant, CodeType))
    return code.replace(co_qualname=code_of_method.co_qualname)


# -- Optimizers --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Calls:
    """Calls of an optimizer's `step`."""

    optimizer: weakref.ref[Optimizer]
    under_way: int = 0
    seen: int = 0
    """Number of steps that the hook saw in the calls under way."""
    undo: Undo | None = None
    """Restores a `step` of the optimizer's own; None if that is not wrapped."""


class OptimizerSteps:
    """Calls `stepped(optimizer)` when an optimizer's step has returned, on the thread that made it.

    torch calls its hooks while its range of the step is open, and a profiler's stop would be part of that range. So at
    the first call a hook wraps `step`, in the optimizer's class, or in the optimizer if it has one of its own, as a
    scheduler of learning rates gives it. Only that call, and a call that bypasses the wrapper, are noted by the hook.

    Neither keeps an optimizer, and with it the memory of the model, for longer than the program does.
    """

    def __init__(self, stepped: Callable[[Optimizer], None]) -> None:
        """Prepare to watch."""
        self._stepped = stepped
        self._calls: dict[int, _Calls] = {}
        """By the optimizer's id, which a later one may have. A weak dictionary would call Python when an optimizer is
        freed, and there the exception of a signal's handler, such as that of Ctrl-C, is lost."""
        self._undo = ExitStack()
        self._on = self._in_hook = False

    def start(self) -> Undo:
        """Watch, and return a function that ends this, even from inside `stepped`. Imports torch."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._on = True
        self._undo.callback(register_optimizer_step_post_hook(self._on_step).remove)
        self._undo.callback(self._forget)
        return self._stop

    def _stop(self) -> None:
        self._on = False
        # While torch goes through its hooks, none may be removed.
        if not self._in_hook:
            self._undo.close()

    def _forget(self) -> None:
        for calls in list(self._calls.values()):
            if calls.undo is not None:
                calls.undo()
        self._calls.clear()

    def _on_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        import torch

        # Anything else would break the graph of a compiled step; such steps do not count.
        if not self._on or torch.compiler.is_compiling():
            return
        calls = self._calls_of(optimizer)
        if calls.under_way:
            calls.seen += 1
            return
        if "step" in vars(optimizer):
            if calls.undo is None:
                calls.undo = _wrap_own(optimizer, self._call)
        elif getattr(type(optimizer).step, "watch", None) is not self:
            self._undo.callback(around(type(optimizer), "step", self._call))
            vars(type(optimizer).step)["watch"] = self
        self._in_hook = True
        try:
            self._stepped(optimizer)
        finally:
            self._in_hook = False

    def _calls_of(self, optimizer: Optimizer) -> _Calls:
        calls = self._calls.get(id(optimizer))
        if calls is None or calls.optimizer() is not optimizer:
            calls = self._calls[id(optimizer)] = _Calls(weakref.ref(optimizer))
        return calls

    def _call(self, step: Callable[..., Any], optimizer: Optimizer, /, *args: Any, **options: Any) -> Any:
        if not self._on:
            self._undo.close()
            return step(optimizer, *args, **options)
        calls = self._calls_of(optimizer)
        calls.under_way += 1
        try:
            result = step(optimizer, *args, **options)
        finally:
            calls.under_way -= 1
            seen = calls.seen
            if not calls.under_way:
                calls.seen = 0
        if seen and not calls.under_way and self._on:
            self._stepped(optimizer)
        return result


def _wrap_own(optimizer: Optimizer, call: Callable[..., Any]) -> Undo:
    """Wrap a `step` of an optimizer itself in `call(step, optimizer, ...)`. Returns as `restoring`."""
    kept, step = weakref.ref(optimizer), optimizer.step

    def original_step(_: Any, /, *args: Any, **options: Any) -> Any:
        return step(*args, **options)

    @functools.wraps(step)
    def wrapped(known: Any, /, *args: Any, **options: Any) -> Any:
        optimizer = kept()
        try:
            return call(original_step, known if optimizer is None else optimizer, *args, **options)
        except BaseException as error:
            leave_no_frame(error)
            raise

    undo = restoring(optimizer, "step", wrapped)
    # Schedulers of learning rates wrap a method. A method of the optimizer itself would keep it, and the model's
    # memory, until Python collects garbage.
    optimizer.step = MethodType(wrapped, weakref.proxy(optimizer))  # type: ignore[method-assign]
    return undo
