"""Traces of Nsight Systems, from the databases that `nsys export --type sqlite` makes of its reports."""

from overlapscope.plugin import Plugin, Recorder, TraceSource

PLUGIN = Plugin(
    name="nsys",
    sources=(
        TraceSource(
            Recorder(
                "nsys",
                "Nsight Systems",
                gpu_activity="`nsys profile --trace=cuda`",
                launches="Record with `nsys profile --trace=cuda`, and export with CUDA API calls.",
                sync_events="Record with `nsys profile --cuda-event-trace=true`.",
                host_ops="ops and system calls",
            ),
            suffixes=(".sqlite",),
            sign=rb"SQLite format 3\0",
            read=f"{__name__}.report:read",
            parts=f"{__name__}.report:parts",
            packed=".nsys-rep",
            unpack=f"{__name__}.report:export",
        ),
    ),
)
