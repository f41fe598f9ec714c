"""For tests that run pytest inside a test."""

from __future__ import annotations

import importlib.metadata

import pytest

from tests.support.helpers import TRACES

PREFETCHING = TRACES / "recorder" / "overlapscope.trace.json.gz"
PAGEABLE = TRACES / "laboratory" / "copy_matrix" / "streamed0_pinned0.trace.json.gz"
PLUGIN = "overlapscope.pytest_plugin"

_INSTALLED = bool(importlib.metadata.entry_points(group="pytest11", name="overlapscope"))
"""True if pytest finds the plugin by itself; naming it would then load it twice."""

_LOADED_BEFORE = "ignore:Module already imported so cannot be rewritten"
"""Pytest's warning about a plugin that the outer test has imported."""

OPTIONS = (
    # Plugins of others, which take their time.
    *("-p", "no:dash", "-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:benchmark"),
    *("--strict-markers", "-W", "error", "-W", _LOADED_BEFORE),
    *(() if _INSTALLED else ("-p", PLUGIN)),
)
"""A strict run, with the plugin."""


REPLAYS = f"""
import shutil
import pytest
from {PLUGIN} import OverlapProfile

STORED = {{"prefetching": {str(PREFETCHING)!r}, "pageable": {str(PAGEABLE)!r}}}

class Replays(OverlapProfile):
    def __exit__(self, *error):
        super().__exit__(*error)
        shutil.copy(STORED[self.stored.pop(0)], self.path)

@pytest.fixture
def overlap_profile(request, tmp_path):
    profile = Replays(request.node, tmp_path / "loader")
    marker = request.node.get_closest_marker("replays")
    profile.stored = list(marker.args) if marker else [request.node.name]
    return profile

def pytest_configure(config):
    config.addinivalue_line("markers", "replays(*names): the stored recordings that take the place of those made")
"""
"""Puts stored recordings of a GPU in the place of those made, which have none, once they have been made."""


def one_test(
    marker: str, body: str = "with overlap_profile as recording: recording.step()", name: str = "pageable"
) -> str:
    """Return a module with a marked test, for which a stored recording is replayed."""
    return f"""
import pytest

@pytest.mark.overlap({marker})
@pytest.mark.replays({name!r})
def test(overlap_profile):
    {body}
"""


def output(result: pytest.RunResult) -> str:
    """All that it printed."""
    return "\n".join(result.outlines)
