"""Recorders of traces, and advice on recording missing parts."""

from __future__ import annotations

from typing import Final

from overlapscope.plugin import Recorder, plugins

_OF_CORE: Final = {
    recorder.id: recorder
    for recorder in (
        Recorder(
            "kineto",
            "torch.profiler",
            gpu_activity="ProfilerActivity.CUDA",
            launches="Record with ProfilerActivity.CPU and ProfilerActivity.CUDA.",
            sync_events="Record with enable_cuda_sync_events=True.",
        ),
    )
}


def recorder_by_id(id: str) -> Recorder:
    """Return the record of a recorder; generic words for an unknown one."""
    of_plugins = (source.recorder for each in plugins() for source in each.sources)
    return next((recorder for recorder in (*_OF_CORE.values(), *of_plugins) if recorder.id == id), None) or Recorder(
        id,
        id,
        gpu_activity="GPU activity",
        launches="Record the calls of the CUDA runtime too.",
        sync_events="Record synchronization events, if the profiler can.",
    )
