"""Does my data move while my GPU computes; if not, why; and what would fixing it bring?

import overlapscope as ov

trace = ov.load("trace.json.gz")
report = ov.analyze(trace)
report.devices[0].overlap.efficiency_pct
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overlapscope.api import analyze, load

__all__ = ["__version__", "analyze", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # The command line answers `--help` without numpy; the API is imported when first used.
    if name in ("analyze", "load"):
        from overlapscope import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
