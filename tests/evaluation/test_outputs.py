"""No output of a command changes unnoticed: `python -m tests.outputs` shows the changes, and renews the digests."""

from __future__ import annotations

import sys

import pytest

from tests.outputs.outputs import changed, outputs


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the digests include help texts as Python 3.11 lays them out"
)
def test_outputs_about_the_bundled_recordings_are_as_before() -> None:
    assert changed(outputs()) == [], "look at the changes with `make outputs`; python -m tests.outputs --update"
