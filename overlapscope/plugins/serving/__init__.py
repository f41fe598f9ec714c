"""Inference servers: recordings by their endpoints, and of the captures of their CUDA graphs."""

from overlapscope.plugin import Plugin

PLUGIN = Plugin(
    name="serving",
    after_torch={"OVERLAPSCOPE_CAPTURES": f"{__name__}.captures:record_captures"},
)
