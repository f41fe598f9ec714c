"""Experiments: those shipped with overlapscope, and the user's own files."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from overlapscope.base.extras import how_to_install
from overlapscope.base.words import listed
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.errors import UsageError
from overlapscope.plugins.laboratory.experiment import SCALES, Experiment, Variant
from overlapscope.rules import RULES

_HERE = Path(__file__).parent
_OF_RECORDING = ("torch", "tensordict")
"""Packages that scenario files import, and that are installed for recording."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


class ScenarioFile(Struct, frozen=True):
    """An experiment and its file."""

    experiment: Experiment
    path: Path


def shipped() -> dict[str, Path]:
    """Return the scenario files shipped with overlapscope by name, from an installed package or a checkout."""
    for directory in (_HERE.parents[1] / "scenarios", _HERE.parents[2] / "scenarios"):
        if directory.is_dir():
            return {path.stem: path for path in sorted(directory.glob("*.py"))}
    return {}


def load(path: Path) -> ScenarioFile:
    """Run a scenario file.

    Returns:
        The file and its experiment.

    Raises:
        UsageError: If the file can't be run, or its experiment is invalid. The text names the file.
    """
    try:
        experiment = getattr(_module(path), "EXPERIMENT", None)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _OF_RECORDING:
            raise UsageError(f"{path}: needs the module {error.name}, which is not installed.") from None
        raise UsageError(f"{path.name}: needs {missing}, which is not installed. {how_to_install('record')}") from None
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
    """Run a scenario file as a module."""
    # The module has the name that Python would import it by from its directory, so that worker processes which the
    # program starts find it. If that name is taken, another module keeps it.
    name = path.stem if path.stem not in sys.modules else f"overlapscope_scenario_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: is not a Python file; name the .py file of an experiment.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _fault(experiment: Experiment) -> str | None:
    """Return the fault in an experiment's definition, if any."""
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
    """Return an unknown cause or rule in a variant's truth, if any.

    A truth about something that doesn't exist would always hold, or never.
    """
    truth = variant.truth
    named: list[tuple[str, Iterable[str | None], Iterable[str]]] = [
        ("exposed_copy", [truth.exposed_copy], COPY_CAUSES),
        ("idle", [truth.idle], IDLE_CAUSES),
        ("findings", truth.findings, RULES),
        ("no_findings", truth.no_findings, RULES),
    ]
    for what, names, valid in named:
        listed = sorted(valid)
        for name in names:
            if name is not None and name not in listed:
                return f"the truth of {variant.name} has {what} {name!r}; there are {', '.join(listed)}"
    return None


def check_distinct(entries: Sequence[ScenarioFile]) -> None:
    """Raise UsageError if two files define experiments with the same name, whose results would overwrite each other."""
    first: dict[str, ScenarioFile] = {}
    for entry in entries:
        other = first.setdefault(entry.experiment.name, entry)
        if other is not entry:
            raise UsageError(
                f"{other.path} and {entry.path} both define {entry.experiment.name!r}; rename one of them."
            )
