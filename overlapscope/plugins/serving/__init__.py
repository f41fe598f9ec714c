"""Inference servers: recordings by their endpoints, captures of their CUDA graphs, and advice on their options."""

from overlapscope.plugin import Plugin

PLUGIN = Plugin(
    name="serving",
    after_torch={"OVERLAPSCOPE_CAPTURES": f"{__name__}.captures:record_captures"},
    captures="OVERLAPSCOPE_CAPTURES",
    servers=f"{__name__}.client:record_server",
    remedies={
        "dispatch": f"{__name__}.options:launch_graphs",
        "exposed-comm": f"{__name__}.options:expose_less",
        "host-sync": f"{__name__}.options:read_late",
        "python": f"{__name__}.options:schedule_ahead",
    },
)
