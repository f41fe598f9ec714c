"""Files of other programs, each of which gets a sentence that says what it is and what to do."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import overlapscope as ov
from overlapscope.errors import UnreadableTrace
from tests.support.kineto_files import kernel, write

EXPORT = "pass a Chrome trace of torch.profiler (`export_chrome_trace`)."
RECORD = "record the program with torch.profiler, jax.profiler or `nsys profile`."


def event(**fields: Any) -> dict[str, Any]:
    return {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 5, "dur": 2, "args": {}} | fields


def named(process: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": process}}


FILES: dict[str, tuple[Any, str]] = {
    "a pointer of Git LFS": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 564133236\n",
        "this is a Git LFS pointer, not the file: run `git lfs pull` in its repository.",
    ),
    "a page of GitHub": (
        b"\n\n<!DOCTYPE html><html></html>",
        "this is a web page: download the file itself, on GitHub by its raw link.",
    ),
    "a snapshot of memory": (
        pickle.dumps({"segments": []}),
        f"this is a Python pickle, such as a snapshot of memory: {EXPORT}",
    ),
    "torch 1.7": (
        [event(pid="CPU functions"), event(pid="CUDA functions", tid=0)],
        "this is an export of PyTorch's profiler without Kineto, which states neither streams nor launches: record "
        "with torch.profiler, in torch 1.8.1 or later.",
    ),
    "py-spy": (
        {"$schema": "https://www.speedscope.app/file-format-schema.json", "profiles": []},
        f"these are a sampler's stacks in speedscope's format, without GPU ops: {EXPORT}",
    ),
    "an execution trace": (
        {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": []},
        f"this is PyTorch's execution trace (`ExecutionTraceObserver`), without times of GPU ops: {EXPORT}",
    ),
    "JSON of Nsight Systems": (
        b'{"Type":79,"CudaEvent":{"startNs":"1"}}\n{"Type":79,"CudaEvent":{"startNs":"2"}}\n',
        "this is an export of Nsight Systems as JSON: export the report with `nsys export --type sqlite`.",
    ),
    "rocprof": (
        {"traceEvents": [named("2 CPU HIP API"), event(args={"BeginNs": "1"})]},
        "this is a trace of rocprof, whose JSON is not read: record with torch.profiler, "
        "which also records AMD's GPUs.",
    ),
    "TensorFlow": (
        {"traceEvents": [named("/job:localhost/replica:0/task:0/device:GPU:0 Compute"), event(cat="Op")]},
        f"this is a timeline of TensorFlow's `Timeline`: {RECORD}",
    ),
    "Chromium": (
        {"traceEvents": [named("CrBrowserMain"), event(cat="toplevel")]},
        f"this is a trace of a browser: {EXPORT}",
    ),
    "VizTracer": ([event(cat="FEE")], f"this is a trace of VizTracer, without GPU ops: {RECORD}"),
    "ONNX Runtime": ([event(cat="Session"), event(cat="Node")], f"this is a profile of ONNX Runtime: {RECORD}"),
    "something else": (
        [event(cat="tick")],
        f"has no event of a kind that torch.profiler records, so another program wrote it; {EXPORT}",
    ),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_program_is_named_with_what_to_do(tmp_path: Path, name: str, packed: bool) -> None:
    content, says = FILES[name]
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(UnreadableTrace) as caught:
        ov.load(path)
    assert str(caught.value) == f"{path}: {says}"


def test_a_device_without_a_name_is_not_named(tmp_path: Path) -> None:
    devices = [{"id": 0, "name": ""}, {"id": 1, "name": " "}, {"id": 2, "name": "Tesla V100"}]
    path = write(
        tmp_path / "trace.json", [kernel(5, 2, device=device) for device in range(3)], deviceProperties=devices
    )
    trace = ov.load(path)
    assert trace.device_names == {2: "Tesla V100"}
    assert ov.analyze(trace).traces[0].environment.gpus == ("Tesla V100",)
