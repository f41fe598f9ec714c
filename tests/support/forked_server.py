"""The server behind `forked.py`: loads torch, or Dash, then forks a process for each program that it is sent.

It is run as a script by itself, so that no module of the tests is left behind in the programs.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any

HIDDEN = ("torch", "torchgen", "functorch")
EXIT_CODE: list[int] = []
"""Exit code of a program that leaves without unloading anything, once it is known."""


class Stash:
    """Modules that are loaded already, as a finder and loader: importing one brings it and those of its stage."""

    def __init__(self) -> None:
        self.stages: list[dict[str, ModuleType]] = []

    def keep(self) -> None:
        """Note what has been loaded since the last stage."""
        names = {name for stage in self.stages for name in stage}
        loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in HIDDEN}
        self.stages.append({name: module for name, module in loaded.items() if name not in names})

    def hide(self) -> None:
        for stage in self.stages:
            for name, module in stage.items():
                del sys.modules[name]
                parent, _, child = name.rpartition(".")
                package = self._stage(parent).get(parent)
                # Only a module that is imported is an attribute of its package.
                if parent not in stage and package is not None and vars(package).get(child) is module:
                    delattr(package, child)
        sys.meta_path.insert(0, self)

    def _stage(self, name: str) -> dict[str, ModuleType]:
        return next((stage for stage in self.stages if name in stage), {})

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        loaded = self._stage(name).get(name)
        if loaded is None:
            return None
        spec = ModuleSpec(name, self, origin=loaded.__spec__ and loaded.__spec__.origin, is_package=True)  # type: ignore[arg-type]
        spec.loader_state = loaded.__spec__
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._stage(spec.name)[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        name, module.__spec__ = module.__spec__.name, module.__spec__.loader_state
        stage = self._stage(name)
        sys.modules |= stage
        for each, loaded in stage.items():
            parent, _, child = each.rpartition(".")
            if parent not in stage and parent in sys.modules:
                setattr(sys.modules[parent], child, loaded)
        if name == "torch":
            from overlapscope.recorder import at_import

            # torch calls it at the end of its import.
            at_import.start()


def load_torch() -> None:
    """Leaves no thread behind, and torch as a program finds it that has not imported it."""
    stash = Stash()
    import torch

    stash.keep()
    # With its first optimizer a program loads the compiler.
    torch.optim.SGD([torch.zeros(1)])
    stash.keep()
    stash.hide()
    # No program garbage-collects the objects loaded here, or copies their pages by touching them.
    gc.collect()
    gc.freeze()


def load_dash() -> None:
    """Leaves loaded what `overlapscope dashboard` imports of others while it answers already."""
    # As the dashboard has Dash find it.
    sys.modules["IPython"] = None  # type: ignore[assignment]
    for name in ("dash", "dash_ag_grid", "dash_mantine_components", "pandas", "plotly.graph_objects", "werkzeug"):
        importlib.import_module(name)
    del sys.modules["IPython"]
    gc.collect()
    gc.freeze()


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Read the next request: a program and its standard streams, or a process to wait for; None at the end."""
    head, streams, _, _ = socket.recv_fds(connection, 4, 3)
    if not head:
        return None
    size, data = int.from_bytes(head, "little"), b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return json.loads(data), list(streams)


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each program and tell its process, and how one ended when that is asked; in the child, return what to
    run."""
    while (received := receive(connection)) is not None:
        asked, streams = received
        if "wait" in asked:
            ended, status = os.waitpid(asked["wait"], asked["options"])
            pid = status if ended else -1
        else:
            pid = os.fork()
            if pid == 0:
                connection.close()
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
            for stream in streams:
                os.close(stream)
            if pid == 0:
                return asked
        connection.sendall(pid.to_bytes(8, "little", signed=True))
    return None


def run(program: dict[str, Any]) -> None:
    """Run `-m module`, `-c text` or a script in this process, as Python would."""
    os.chdir(program["cwd"])
    os.environ.clear()
    os.environ.update(program["environment"])
    first, *rest = program["arguments"]
    sys.orig_argv = [sys.executable, first, *rest]
    begin_as_site_does(os.environ.get("PYTHONPATH", ""))
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if first == "-m":
        sys.argv = rest
        sys.path[0] = os.getcwd()
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[0] = ""
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = [first, *rest]
        sys.path[0] = os.path.dirname(os.path.realpath(first))
        path = os.path.abspath(first)
        main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
        exec(code, main.__dict__)


def begin_as_site_does(path: str) -> None:
    """Import the `sitecustomize` of a PYTHONPATH with directories that the server's PYTHONPATH lacks."""
    added = [place for place in path.split(os.pathsep) if place and place not in sys.path]
    sys.path[1:1] = added
    if added:
        with suppress(ImportError):
            importlib.import_module("sitecustomize")


def show_only_its_own(error: BaseException) -> None:
    """Have Python print that traceback without what led to the program."""
    hook = sys.excepthook

    def without_ours(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        hook(kind, value.with_traceback(traceback), traceback)

    if not isinstance(error, SystemExit):
        sys.excepthook = without_ours


def exit_code(error: BaseException | None) -> int | None:
    """Return the exit code that Python gives a program after its last exception; None if a signal ends it."""
    if isinstance(error, SystemExit):
        return error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
    return None if isinstance(error, KeyboardInterrupt) else int(error is not None)


def leave() -> None:
    """End a program here, after its threads and all other functions for its end, if it need not unload anything."""
    if EXIT_CODE:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(EXIT_CODE[0])


def main(arguments: Sequence[str]) -> None:
    # Python calls last what was registered first.
    atexit.register(leave)
    {"torch": load_torch, "dash": load_dash}[arguments[1]]()
    with socket.socket(fileno=int(arguments[0])) as connection:
        program = serve(connection)
    if program is not None:
        last: BaseException | None = None
        try:
            run(program)
        except BaseException as error:
            last = error
            show_only_its_own(error)
            raise
        finally:
            if not program["unloads"] and (code := exit_code(last)) is not None:
                EXIT_CODE.append(code)


main(sys.argv[1:])
