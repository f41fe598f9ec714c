"""Traces of Huawei's Ascend NPUs, from torch_npu."""

from overlapscope.plugin import Plugin, Recorder, TraceSource

_TIME_AS_TEXT = rb'"ts"\s*:\s*"\d{9,}(?:\.\d+)?"'
# torch_npu writes times as texts, and no other profiler does.
_PROCESS = (
    rb'"process_name"\s*,\s*"pid"\s*:\s*\d+\s*,\s*"tid"\s*:\s*\d+\s*,\s*"args"\s*:\s*\{\s*"name"\s*:\s*"Python"'
    rb'|"args"\s*:\s*\{\s*"name"\s*:\s*"(?:Ascend Hardware|CANN)"'
)
# Name of a process. A program with many threads has nothing but names at the beginning of its file. Kineto calls no
# process `CANN`, and writes a time before the process of such a row.

PLUGIN = Plugin(
    name="ascend",
    sources=(
        TraceSource(
            Recorder(
                "torch_npu",
                "torch_npu.profiler",
                gpu_activity="ProfilerActivity.NPU",
                launches="Record with ProfilerActivity.CPU and ProfilerActivity.NPU.",
                sync_events="torch_npu's profiler cannot record what a stream waits for.",
            ),
            suffixes=(".json", ".json.gz", ".json.zst"),
            sign=rb"(?s)\s*\[.*?(?:" + _TIME_AS_TEXT + b"|" + _PROCESS + b")",
            read=f"{__name__}.file:read",
        ),
    ),
)
