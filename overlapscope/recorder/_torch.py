"""Whether torch is there, found out without importing it."""

from __future__ import annotations

import importlib.util
import sys

from overlapscope.errors import MissingPackage


def require_torch() -> None:
    """Raises MissingPackage, with what to install, where torch is not installed."""
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        raise MissingPackage(
            "recording needs PyTorch, which this Python does not have: pip install 'overlapscope[record]', "
            "or the build of torch for your GPU as https://pytorch.org/get-started says."
        )
