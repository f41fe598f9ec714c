"""Inference servers: recordings by their endpoints, captures of their CUDA graphs, and advice on their options."""

from overlapscope.plugin import Plugin

PLUGIN = Plugin(
    name="serving",
    after_torch={"OVERLAPSCOPE_CAPTURES": f"{__name__}.captures:record_captures"},
    captures="OVERLAPSCOPE_CAPTURES",
    servers=f"{__name__}.client:record_server",
    remedies={"exposed-comm": f"{__name__}.options:expose_less"},
)
