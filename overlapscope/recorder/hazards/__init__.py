"""Checks for data races between host and device, and between streams, while the program runs. Imports torch.

`memory`, `bookkeeping` and `findings` do not use torch. `sync_events` (events and synchronizations), `launches`
(operators, of which `collectives` knows those that communicate) and `host_memory` (the rest) enter into the books what
torch does. `checker` puts them together.
"""

from overlapscope.recorder.hazards.checker import HazardChecker
from overlapscope.recorder.hazards.findings import Hazard, HazardPlace, describe

__all__ = ["Hazard", "HazardChecker", "HazardPlace", "describe"]
