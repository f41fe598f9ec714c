"""Parts of a recording that may be lost, and words for them. A result is unknown if a part that it needs is lost.

In the lead-in, a device works off what was launched before the recording began. Those launches are lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, Literal, get_args

import numpy as np

from overlapscope.base.words import listed
from overlapscope.trace.model import GpuOps, Kind, RuntimeCalls
from overlapscope.trace.op_names import is_migration

Part = Literal[
    "compute",
    "comm",
    "copies",
    "other",
    "fills",
    "calls",
    "ops",
    "ranges",
    "syncs",
    "overheads",
    "frames",
    "clocks",
]
"""GPU ops by kind, parts of the host's recording, and `clocks`: host and device times can be compared."""

PARTS_IN_WORDS: Final[dict[Part, str]] = {
    "compute": "compute kernels",
    "comm": "communication kernels",
    "copies": "copies between host and device",
    "other": "device-side copies and memsets",
    "fills": "memsets",
    "calls": "runtime calls",
    "ops": "CPU ops",
    "ranges": "steps and ranges",
    "syncs": "synchronization records",
    "overheads": "times of the profiler itself",
    "frames": "Python functions",
    "clocks": "the host's clock beside the device's",
}

EVERYTHING: Final[frozenset[Part]] = frozenset(get_args(Part))
GPU_OPS: Final[frozenset[Part]] = frozenset({"compute", "comm", "copies", "other", "fills"})
PARTS_FOR_FIGURES: Final[frozenset[Part]] = frozenset({*GPU_OPS, "calls", "ranges"})
"""Parts that figures need. A step begins with the first op launched in it, and launches and steps show where the
lead-in ends."""
PARTS_FOR_ENGINES: Final[frozenset[Part]] = PARTS_FOR_FIGURES - {"other", "fills"}
"""Parts that figures of kernels and copies need, whichever of them they are about."""
PARTS_FOR_CAUSES: Final[frozenset[Part]] = EVERYTHING - {"frames", "fills"}
"""Parts that the causes of exposed time and of idle time need. Python functions only name the line, and where a memset
is lost the GPU only looks idler."""
PARTS_FOR_FINDINGS: Final[frozenset[Part]] = PARTS_FOR_CAUSES - {"other"}
"""Parts without which a rule may miss time, unless it is about copies within and between GPUs."""

PARTS_FOR_HOST: Final[frozenset[Part]] = frozenset({"ops", "ranges"})
"""Parts that the figures of a program without GPU activity need."""

PART_OF_KIND: Final[dict[Kind, Part]] = {
    Kind.COMPUTE: "compute",
    Kind.COMM: "comm",
    Kind.H2D: "copies",
    Kind.D2H: "copies",
    Kind.OTHER: "other",
    Kind.P2P: "other",
}


def part_words(parts: Collection[str]) -> str:
    """Return the parts in words, such as `compute kernels and runtime calls`, in the order of `PARTS_IN_WORDS`."""
    return listed(word for part, word in PARTS_IN_WORDS.items() if part in parts)


def in_order(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return each part once, in the order of `PARTS_IN_WORDS`."""
    chosen = set(parts)
    return tuple(part for part in PARTS_IN_WORDS if part in chosen)


def reliance(rests_on: Collection[Part]) -> str:
    """Return sentences on the parts that a result needs, and the consequence of losing them."""
    return (
        f"It rests on these parts of the recording: {part_words(rests_on)}. If any of them may be lost, the result is "
        "unknown, also for `overlapscope check`; a finding stands if no op of the GPU may be lost."
    )


# -- Lead-in -----------------------------------------------------------------------------------------


def lead_in_end(ops: GpuOps, calls: RuntimeCalls, start: int) -> int | None:
    """Return the end of the last op that was launched before the recording began.

    Correlations are assigned in launch order, so an op without a recorded launch was launched earlier exactly if its
    correlation is below every recorded one; later gaps in the records have higher ones. An op without a correlation
    counts if it begins before any op with a recorded launch.
    """
    launched = ops.launch >= 0
    if not launched.any():
        return None
    # No call launches a page migration.
    orphans = np.flatnonzero(~launched & ~ops.named(is_migration))
    correlations = calls.correlation[calls.correlation > 0]
    earliest = correlations.min() if len(correlations) else 0
    nameless = ops.correlation[orphans] <= 0
    before = np.where(
        nameless, ops.start_ns[orphans] < ops.start_ns[launched].min(), ops.correlation[orphans] < earliest
    )
    return max(start, int(ops.end_ns[orphans[before]].max(initial=start)))
