"""Running a script or a module as `__main__`, as Python itself does.

`runpy` would do most of this, but it removes the program's `__main__` after the program's last line. Threads and exit
handlers of the program could then not pickle its functions and classes any more.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

from overlapscope.errors import UsageError
from overlapscope.recorder import imports

_NOT_THE_PROGRAMS = frozenset({__name__, "runpy", "importlib._bootstrap", "importlib._bootstrap_external"})
"""Modules whose frames are between Python and the program."""


def run_script(path: str, arguments: Sequence[str]) -> BaseException | None:
    """Run a file, or a directory or zip file with a `__main__.py`, as `python PATH ARGUMENTS` does.

    Returns:
        The exception that ended the program, for `last_words`; None if it ran to its end.

    Raises:
        UsageError: There is no such program; nothing has run then.
    """
    if path.endswith(".ipynb"):
        raise UsageError(f"{path}: is a notebook, which IPython runs: `overlapscope run -m IPython {path}`.")
    # Python makes the path absolute, but does not normalize it.
    absolute = os.path.join(os.getcwd(), path)
    sys.argv[:] = [path, *arguments]
    if pkgutil.get_importer(absolute) is not None:
        sys.path[0 : 0 if sys.flags.safe_path else 1] = [absolute]
        imports.give_way(absolute)
        spec = importlib.machinery.PathFinder.find_spec("__main__", [absolute])
        if spec is None:
            raise UsageError(f"{path}: has no __main__.py; name the script to run.")
        loader: Any = spec.loader
        return _run(lambda: (loader.get_code("__main__"), _made_of(spec)))
    try:
        with io.open_code(absolute) as file:
            source = file.read()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error}); name the script to run.") from None
    _look_first_in(os.path.dirname(os.path.realpath(absolute)))
    return _run(lambda: _of_file(absolute, source))


def run_text(text: str | bytes, name: str, arguments: Sequence[str]) -> BaseException | None:
    """Run the text of a program, as `python -c TEXT` (`name` is `-c`) and `python -` do. See `run_script`."""
    sys.argv[:] = [name, *arguments]
    _look_first_in("")
    file_name = "<string>" if name == "-c" else "<stdin>"

    def load() -> tuple[CodeType, ModuleType]:
        module = ModuleType("__main__")
        module.__loader__ = importlib.machinery.BuiltinImporter
        if name != "-c":
            module.__dict__.update(__file__=file_name, __cached__=None)
        return compile(text, file_name, "exec", dont_inherit=True), module

    return _run(load)


def run_module(name: str, arguments: Sequence[str]) -> BaseException | None:
    """Run a module, or a package's `__main__`, as `python -m NAME ARGUMENTS` does.

    Packages around the module are imported even if the module turns out to be missing.

    Returns:
        As for `run_script`.
    """
    sys.argv[:] = ["-m", *arguments]
    _look_first_in(os.getcwd())

    def load() -> tuple[CodeType, ModuleType]:
        try:
            # Python calls this for -m. It imports no more than the packages around the module.
            _, spec, code = runpy._get_module_details(name, _NoModule)  # type: ignore[attr-defined]
        except _NoModule as error:
            cause = error.__cause__
            missing = f"No module named {cause.name}" if isinstance(cause, ModuleNotFoundError) else error
            raise UsageError(f"{missing}; name the module to run, or a script without -m.") from None
        module = _made_of(spec)
        sys.argv[0] = module.__file__ or name
        return code, module

    return _run(load)


class _NoModule(Exception):
    """There is no module of that name that can be run."""


def _look_first_in(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder
        imports.give_way(folder)


def _of_file(path: str, source: bytes) -> tuple[CodeType, ModuleType]:
    module = ModuleType("__main__")
    module.__file__ = path
    if path.endswith(".pyc"):
        loader = importlib.machinery.SourcelessFileLoader("__main__", path)
        code = loader.get_code("__main__")
        module.__loader__ = loader
    else:
        code = compile(source, path, "exec", dont_inherit=True)
        module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__["__cached__"] = None
    assert code is not None
    return code, module


def _made_of(spec: ModuleSpec) -> ModuleType:
    module = ModuleType("__main__")
    module.__file__ = spec.origin
    module.__package__, module.__loader__, module.__spec__ = spec.parent, spec.loader, spec
    module.__dict__["__cached__"] = spec.cached
    return module


_stopped = threading.Event()


def stop_program() -> NoReturn:
    """End the program from inside, as `sys.exit()` does."""
    _stopped.set()
    raise SystemExit


def _run(load: Callable[[], tuple[CodeType, ModuleType]]) -> BaseException | None:
    try:
        code, module = load()
        module.__dict__["__builtins__"] = builtins
        if sys.version_info < (3, 14):
            module.__annotations__ = {}
        # It stays there, since the program's threads and exit handlers outlive its last line.
        sys.modules["__main__"] = module
        exec(code, module.__dict__)
        return None
    except BaseException as error:
        traceback = _of_the_program(error.__traceback__)
        # From `load`, it is ours, but the program may raise this error, too.
        if isinstance(error, UsageError) and traceback is None:
            raise
        # If a GPU tensor is freed while a frame is left, torch's trace of the GPU calls Python, and the exception is
        # lost (torch 2.11). The checks for data races need that trace.
        lost = _stopped.is_set() and isinstance(error, SystemError)
        return SystemExit() if lost else error.with_traceback(traceback)


def last_words(error: BaseException | None) -> int | None:
    """Print what Python prints of the exception that ended the program.

    Returns:
        The exit code; None if the process is to die by SIGINT, as Python does of a KeyboardInterrupt.
    """
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return _exited(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        _call(sys.excepthook, error)
    except SystemExit as stop:
        return _exited(stop)
    except BaseException as failure:
        _show("Error in sys.excepthook:")
        _call(sys.__excepthook__, failure)
        _show("\nOriginal exception was:")
        _call(sys.__excepthook__, error)
    # Like Python, this excludes subclasses.
    return None if type(error) is KeyboardInterrupt else 1


def _call(hook: Callable[..., object], error: BaseException) -> None:
    # Python shows the exception's own traceback, whatever the hook is passed.
    error.__traceback__ = _of_the_program(error.__traceback__)
    hook(type(error), error, error.__traceback__)


def _exited(stop: SystemExit) -> int:
    if stop.code is None or isinstance(stop.code, int):
        return stop.code or 0
    _show(stop.code)
    return 1


def _show(message: object) -> None:
    # The program may have closed stderr.
    with suppress(Exception):
        print(message, file=sys.stderr)


def _of_the_program(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__") in _NOT_THE_PROGRAMS:
        traceback = traceback.tb_next
    return traceback
