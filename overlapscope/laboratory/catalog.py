"""Which experiments there are: those that come with overlapscope, and files of the user's own."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import Struct

from overlapscope.base.extras import how_to_install
from overlapscope.base.words import listed
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.errors import UsageError
from overlapscope.laboratory.experiment import SCALES, Experiment, Variant
from overlapscope.rules import RULES

_HERE = Path(__file__).parent
_OF_RECORDING = ("torch", "tensordict")
"""Packages that scenario files import, and whoever only reads results need not have."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


class ScenarioFile(Struct, frozen=True):
    """An experiment and the file it is in."""

    experiment: Experiment
    path: Path


def shipped() -> dict[str, Path]:
    """The scenario files that come with overlapscope, by name: inside an installed package, or of a checkout."""
    for directory in (_HERE.parent / "scenarios", _HERE.parents[1] / "scenarios"):
        scenarios = {path.stem: path for path in sorted(directory.glob("*.py")) if _is_scenario(path)}
        if scenarios:
            return scenarios
    return {}


def _is_scenario(path: Path) -> bool:
    """Whether a file defines an `EXPERIMENT`, found out without running it; one that cannot be read might."""
    try:
        body = ast.parse(path.read_bytes(), str(path)).body
    except (SyntaxError, ValueError):
        return True
    targets = [
        target
        for node in body
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
    ]
    return any(isinstance(target, ast.Name) and target.id == "EXPERIMENT" for target in targets)


def load(path: Path, *, to_list: bool = False) -> ScenarioFile:
    """Run a scenario file and take its experiment. What is loaded `to_list` needs no torch, and cannot be run without.

    Raises UsageError where it cannot be run or what it defines is no sound experiment, with the file's name.
    """
    try:
        experiment = getattr(_module(path), "EXPERIMENT", None)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _OF_RECORDING:
            raise UsageError(f"{path}: needs the module {error.name}, which is not installed.") from None
        if not to_list:
            raise UsageError(
                f"{path.name}: needs {missing}, which is not installed. {how_to_install('record')}"
            ) from None
        with stand_ins(_OF_RECORDING):
            return load(path)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{path}: cannot be run ({type(error).__name__}: {error}).") from error
    if not isinstance(experiment, Experiment):
        raise UsageError(
            f"{path}: defines no EXPERIMENT; docs/guides/laboratory.md shows what a scenario file looks like."
        )
    fault = _fault(experiment)
    if fault:
        raise UsageError(f"{path}: {fault}.")
    return ScenarioFile(experiment, path)


def _module(path: Path) -> ModuleType:
    """A scenario file, run."""
    # Under its own name, as Python would import it from its directory: worker processes that a program starts
    # find it so. A name that is taken keeps its module.
    name = path.stem if path.stem not in sys.modules else f"overlapscope_scenario_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: is not a Python file; name the .py file of an experiment.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _fault(experiment: Experiment) -> str | None:
    """What is wrong with an experiment's definition."""
    names = [variant.name for variant in experiment.variants]
    for name in (experiment.name, *names):
        if not _NAME.fullmatch(name):
            return f"{name!r} cannot name a file; use letters, digits and _ . + -"
    if not names:
        return f"experiment {experiment.name} has no variants"
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        return f"experiment {experiment.name} has two variants called {twice[0]!r}"
    for name in (name for pair in experiment.faster for name in pair):
        if name not in names:
            return f"`faster` names {name!r}, which is not a variant of {experiment.name}"
    for scale in experiment.sizes:
        if scale not in SCALES:
            return f"`sizes` names {scale!r}; scales are {listed(SCALES)}"
    return next(filter(None, (_untrue(variant) for variant in experiment.variants)), None)


def _untrue(variant: Variant) -> str | None:
    """What a variant's truth speaks of that does not exist: it would hold, or not hold, whatever is found."""
    truth = variant.truth
    named: list[tuple[str, Iterable[str | None], Iterable[str]]] = [
        ("exposed_copy", [truth.exposed_copy], COPY_CAUSES),
        ("idle", [truth.idle], IDLE_CAUSES),
        ("findings", truth.findings, RULES),
        ("no_findings", truth.no_findings, RULES),
    ]
    for what, names, known in named:
        listed = sorted(known)
        for name in names:
            if name is not None and name not in listed:
                return f"the truth of {variant.name} has {what} {name!r}; there are {', '.join(listed)}"
    return None


def check_distinct(entries: Sequence[ScenarioFile]) -> None:
    """Raise UsageError where two files hold an experiment of one name: their results would overwrite each other."""
    first: dict[str, ScenarioFile] = {}
    for entry in entries:
        other = first.setdefault(entry.experiment.name, entry)
        if other is not entry:
            raise UsageError(
                f"{other.path} and {entry.path} both define {entry.experiment.name!r}; rename one of them."
            )


# -- without torch --------------------------------------------------------------------------------


@contextmanager
def stand_ins(packages: Sequence[str]) -> Iterator[None]:
    """While it lasts, what is imported of these packages is there, and does nothing: for files of which only what they
    declare is wanted."""
    finder = _StandInFinder(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name, module in sys.modules.items() if isinstance(module, _StandIn)]:
            del sys.modules[name]


class _StandIn(ModuleType):
    """Anything can be looked up in it, which can be called, derived from, and used in the type of something."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> _StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **options: Any) -> _StandIn:
        return self

    __getitem__ = __or__ = __ror__ = __call__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


class _StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self._packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""
