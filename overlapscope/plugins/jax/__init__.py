"""Traces of jax.profiler."""

from overlapscope.plugin import Plugin, Recorder, TraceSource

XSPACE = (
    rb"\n[\x80-\xff]{0,9}[\0-\x7f](?:\x08[\x80-\xff]{0,9}[\0-\x7f])?\x12[\x01-\x7f](?:/host:|/device:|Task Environment)"
)
"""Beginning of XLA's protocol buffer: the first field of a message is a plane with one of XLA's names."""
# A process has the name of a plane. XLA's events have no category, and Kineto's do.
_JSON = rb'(?!.*"cat").*?"name"\s*:\s*"[^"\\]{0,99}/(?:host|device):[A-Z]'

PLUGIN = Plugin(
    name="jax",
    sources=(
        TraceSource(
            Recorder(
                "jax",
                "jax.profiler",
                gpu_activity="device tracing",
                launches="Record with `host_tracer_level` of at least 1 in jax.profiler.ProfileOptions.",
                sync_events="XLA's profiler cannot record synchronization events.",
            ),
            suffixes=(".xplane.pb",),
            sign=b"(?s)" + XSPACE + b"|" + _JSON,
            read=f"{__name__}.file:read",
            runs="plugins/profile/*",
            copies=("*.trace.json.gz", "perfetto_trace.json.gz"),
        ),
    ),
)
