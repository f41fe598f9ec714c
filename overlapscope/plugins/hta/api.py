"""HolisticTraceAnalysis on our Traces: `trace_analysis` makes HTA's own object of them (`docs/evaluation/hta.md`).

    analysis = overlapscope.hta.trace_analysis("traces/ddp")
    analysis.get_temporal_breakdown(visualize=False)

HTA itself is imported when it is used, not here.
"""

from __future__ import annotations

from overlapscope.plugins.hta.build import trace_analysis

__all__ = ["trace_analysis"]
