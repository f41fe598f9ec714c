"""The scenario files that come with overlapscope, each loaded once for all tests of them."""

from __future__ import annotations

import functools
import sys
from types import ModuleType

from overlapscope.plugins.laboratory import catalog
from overlapscope.plugins.laboratory.experiment import Experiment


@functools.cache
def experiment(name: str) -> Experiment:
    """Return a file's experiment."""
    return catalog.load(catalog.shipped()[name]).experiment


def module(name: str) -> ModuleType:
    """Return the file as a module, for tests of its parts."""
    return sys.modules[experiment(name).prepare.__module__]
