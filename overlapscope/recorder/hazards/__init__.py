"""Data races between host and device, and between streams, found while the program runs. Imports torch.

`memory`, `bookkeeping` and `findings` know nothing of torch. What turns torch's doings into entries of the books:
`sync_events` (events and synchronisations), `launches` (operators) and `host_memory` (the rest). `checker` puts them
together.
"""

from overlapscope.recorder.hazards.checker import HazardChecker
from overlapscope.recorder.hazards.findings import Hazard, Place, describe

__all__ = ["Hazard", "HazardChecker", "Place", "describe"]
