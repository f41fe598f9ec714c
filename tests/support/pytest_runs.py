"""For tests that run pytest inside a test."""

from __future__ import annotations

import importlib.metadata

import pytest

PLUGIN = "overlapscope.pytest_plugin"

_INSTALLED = bool(importlib.metadata.entry_points(group="pytest11", name="overlapscope"))
"""Whether pytest finds the plugin by itself; naming it then would load it twice."""

_LOADED_BEFORE = "ignore:Module already imported so cannot be rewritten"
"""What pytest says of a plugin that the test around has imported."""

OPTIONS = (
    # Plugins of others, which take their time.
    *("-p", "no:dash", "-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:benchmark"),
    *("--strict-markers", "-W", "error", "-W", _LOADED_BEFORE),
    *(() if _INSTALLED else ("-p", PLUGIN)),
)
"""A strict run, with the plugin."""


def output(result: pytest.RunResult) -> str:
    """All that it printed."""
    return "\n".join(result.outlines)
