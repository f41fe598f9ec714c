"""Data races between host and device, and between streams, found while the program runs.

Three layers. What needs no torch: `memory`, `copies`, `uses` and `findings`, led by `bookkeeping`. What turns torch's
doings into entries of the books: `sync_events` (events and synchronisations), `mode` and `launches` (operators),
`methods` and `host_memory` (the rest). `checker` and `watch` put them together.
"""

from overlapscope.recorder.hazards.checker import HazardChecker
from overlapscope.recorder.hazards.hazard import Hazard, Place, describe

__all__ = ["Hazard", "HazardChecker", "Place", "describe"]
