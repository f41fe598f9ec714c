"""The parts of a recording that may be lost, and words for them: what rests on a lost part cannot be told."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, Literal, get_args

from overlapscope.base.words import listed
from overlapscope.trace.model import Kind

Part = Literal["compute", "comm", "copies", "other", "calls", "ops", "ranges", "syncs", "overheads", "frames", "clocks"]
"""GPU ops by what they do; what was recorded of the host; and `clocks`: that host and device times can be compared."""

WORDS: Final[dict[Part, str]] = {
    "compute": "compute kernels",
    "comm": "communication kernels",
    "copies": "copies between host and device",
    "other": "device-side copies and memsets",
    "calls": "runtime calls",
    "ops": "CPU ops",
    "ranges": "steps and ranges",
    "syncs": "synchronization records",
    "overheads": "times of the profiler itself",
    "frames": "Python functions",
    "clocks": "the host's clock beside the device's",
}

EVERYTHING: Final[frozenset[Part]] = frozenset(get_args(Part))
GPU_OPS: Final[frozenset[Part]] = frozenset({"compute", "comm", "copies", "other"})
FIGURES: Final[frozenset[Part]] = frozenset({*GPU_OPS, "calls", "ranges"})
"""What every figure rests on, whichever ops it is of: a step begins with the first op that was launched in it, and
where the lead-in ends is told by launches and steps."""
CAUSES: Final[frozenset[Part]] = EVERYTHING - {"frames"}
"""What the causes of exposed copies and of idle time are found by. Python functions only name the line."""

HOST: Final[frozenset[Part]] = frozenset({"ops", "ranges"})
"""What the figures of a program without GPU activity rest on."""

OF_KIND: Final[dict[Kind, Part]] = {
    Kind.COMPUTE: "compute",
    Kind.COMM: "comm",
    Kind.H2D: "copies",
    Kind.D2H: "copies",
    Kind.OTHER: "other",
}


def part_words(parts: Collection[str]) -> str:
    """`compute kernels and runtime calls`, in the order of `WORDS`."""
    return listed(word for part, word in WORDS.items() if part in parts)


def in_order(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Each part once, in the order in which they are always told."""
    chosen = set(parts)
    return tuple(part for part in WORDS if part in chosen)


def rests(rests_on: Collection[Part]) -> str:
    """What something rests on, and what comes of that, in sentences."""
    return (
        f"It rests on these parts of the recording: {part_words(rests_on)}. Where some of one may be lost, it cannot "
        "be told, and `overlapscope check` calls it unknown."
    )
