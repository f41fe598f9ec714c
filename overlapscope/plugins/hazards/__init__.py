"""Checks for data races between host and device, and between streams, while a program is recorded.

`bookkeeping` does not use torch. `sync_events` (events and synchronizations), `launches` (operators, whose uses of
memory `operators` knows) and `host_memory` (the rest) enter into the books what torch does. `checker` puts them
together.
"""

from overlapscope.plugin import ObserverOption, Plugin

PLUGIN = Plugin(
    name="hazards",
    observer=ObserverOption(
        "--check-hazards",
        "look for data races between host and GPU, and between streams",
        f"{__name__}.checker:HazardChecker",
    ),
)
