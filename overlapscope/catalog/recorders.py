"""Recorders of traces, and advice on recording missing parts."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Recorder(Struct, frozen=True):
    """A recorder, with the id that its traces state (`Trace.recorder`)."""

    id: str
    name: str
    gpu_activity: str
    """Option that records GPU activity, as in `recorded without ...`."""
    launches: str
    """How to record launches, in a sentence."""
    sync_events: str
    """How to record waits between streams, in a sentence."""


RECORDERS: Final = {
    recorder.id: recorder
    for recorder in (
        Recorder(
            "kineto",
            "torch.profiler",
            gpu_activity="ProfilerActivity.CUDA",
            launches="Record with ProfilerActivity.CPU and ProfilerActivity.CUDA.",
            sync_events="Record with enable_cuda_sync_events=True.",
        ),
        Recorder(
            "jax",
            "jax.profiler",
            gpu_activity="device tracing",
            launches="Record with `host_tracer_level` of at least 1 in jax.profiler.ProfileOptions.",
            sync_events="XLA's profiler cannot record synchronization events.",
        ),
        Recorder(
            "nsys",
            "Nsight Systems",
            gpu_activity="`nsys profile --trace=cuda`",
            launches="Record with `nsys profile --trace=cuda`, and export with CUDA API calls.",
            sync_events="Record with `nsys profile --cuda-event-trace=true`.",
        ),
        Recorder(
            "torch_npu",
            "torch_npu.profiler",
            gpu_activity="ProfilerActivity.NPU",
            launches="Record with ProfilerActivity.CPU and ProfilerActivity.NPU.",
            sync_events="torch_npu's profiler cannot record what a stream waits for.",
        ),
    )
}


def recorder_by_id(id: str) -> Recorder:
    """Return the record of a recorder; generic words for an unknown one."""
    return RECORDERS.get(id) or Recorder(
        id,
        id,
        gpu_activity="GPU activity",
        launches="Record the calls of the CUDA runtime too.",
        sync_events="Record synchronization events, if the profiler can.",
    )
