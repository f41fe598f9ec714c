"""First bytes of formats: packed files, databases, and files of other programs, which hold nothing to read."""

from __future__ import annotations

import re
from typing import Final

GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
SQLITE: Final = b"SQLite format 3\x00"

_EXPORT: Final = "pass a Chrome trace of torch.profiler (`export_chrome_trace`)"
_RECORD: Final = "record the program with torch.profiler, jax.profiler or `nsys profile`"

_FOREIGN: Final = {
    rb"\APK\x03\x04": "this is a zip archive: unpack it first",
    rb"\ABZh": "this is packed with bzip2: unpack it first",
    rb"\A\xfd7zXZ\x00": "this is packed with xz: unpack it first",
    rb"\A\x80[\x02-\x05]": f"this is a Python pickle, such as a snapshot of memory: {_EXPORT}",
    rb"\A(\xff\xfe|\xfe\xff)": "this is UTF-16 text: save it as UTF-8",
    rb"\Aversion https://git-lfs\.": "this is a Git LFS pointer, not the file: run `git lfs pull` in its repository",
    rb"(?i)\A\s*<(!doctype html|html)": "this is a web page: download the file itself, on GitHub by its raw link",
    rb'\A\s*\{\s*"schema_version"\s*:': "this was written by another version of overlapscope: write it again",
    rb'"pid"\s*:\s*"(CPU|CUDA) functions"': "this is an export of PyTorch's profiler without Kineto, which states "
    "neither streams nor launches: record with torch.profiler, in torch 1.8.1 or later",
    rb"speedscope\.app/": f"these are a sampler's stacks in speedscope's format, without GPU ops: {_EXPORT}",
    rb'"schema"\s*:\s*"[^"]*chakra': "this is PyTorch's execution trace (`ExecutionTraceObserver`), without times "
    f"of GPU ops: {_EXPORT}",
    rb'"(CudaEvent|NvtxEvent|TraceProcessEvent)"\s*:': "this is an export of Nsight Systems as JSON: export the "
    "report with `nsys export --type sqlite`",
    rb'("\d* ?CPU HIP API"|"rocprofiler-sdk-tool")': "this is a trace of rocprof, whose JSON is not read: record with "
    "torch.profiler, which also records AMD's GPUs",
    rb'"/job:[^"]* (Compute|Tensors)"': f"this is a timeline of TensorFlow's `Timeline`: {_RECORD}",
    rb'("Cr(Browser|Renderer|Gpu)Main"|devtools\.timeline)': f"this is a trace of a browser: {_EXPORT}",
    rb'("cat"\s*:\s*"FEE"|viztracer)': f"this is a trace of VizTracer, without GPU ops: {_RECORD}",
    rb'"cat"\s*:\s*"(Session|Node)"': f"this is a profile of ONNX Runtime: {_RECORD}",
}
"""Signs in the beginning of a file, in the order in which they are looked for, and what to say."""


def foreign(head: bytes) -> str | None:
    """Return a sentence on a file of another program, known by its first bytes; None for other files."""
    return next((f"{what}." for sign, what in _FOREIGN.items() if re.search(sign, head)), None)
