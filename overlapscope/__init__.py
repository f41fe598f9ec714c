"""Does my data move while my GPU computes; if not, why; and what would fixing it bring?

import overlapscope as ov

trace = ov.load("trace.json.gz")
report = ov.analyze(trace)  # or ov.analyze("trace.json.gz"): whatever takes a trace takes its file
report.devices[0].overlap.efficiency_pct
ov.diff(before, after).verdict
ov.whatif(trace, ["pin", "side-stream"]).predicted_step_ns
ov.check(report, {"forbid": ["pageable-memory"]}).outcome
ov.sql(trace, "SELECT cause, sum(duration_ns) FROM idle_pieces GROUP BY cause")  # a data frame
ov.show(report)  # the dashboard
ov.try_changes(build).best  # changes tried on a step function
ov.watch()  # `overlapscope record PID` records this process while it goes on

with ov.record("trace.json.gz") as rec:  # ov.step() marks steps from anywhere
    ...
    rec.step()
"""

from __future__ import annotations

from overlapscope.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from overlapscope.api import analyze, check, diff, load, whatif
    from overlapscope.dashboard.launch import show
    from overlapscope.recorder.recording import record, step

__all__ = [
    "__version__",
    "analyze",
    "check",
    "diff",
    "load",
    "record",
    "show",
    "step",
    "whatif",
]

_PLACES = {
    "analyze": "overlapscope.api:analyze",
    "check": "overlapscope.api:check",
    "diff": "overlapscope.api:diff",
    "load": "overlapscope.api:load",
    "record": "overlapscope.recorder.recording:record",
    "show": "overlapscope.dashboard.launch:show",
    "step": "overlapscope.recorder.recording:step",
    "whatif": "overlapscope.api:whatif",
}
"""Places of the API's names: each is imported when first used, and the command line starts without typing."""


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name) or _place_in_plugin(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from overlapscope.base.registry import load

    value = globals()[name] = load(place)
    return value


def _place_in_plugin(name: str) -> str | None:
    from overlapscope.plugin import built_in

    return next((plugin.api[name] for plugin in built_in() if name in plugin.api), None)
