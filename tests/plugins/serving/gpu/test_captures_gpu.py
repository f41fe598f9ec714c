"""Captures of CUDA graphs that are recorded while a program makes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import overlapscope as ov
from overlapscope.analysis.graphs import origins
from overlapscope.plugins.serving.captures import record_captures

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_replayed_ops_have_the_modules_of_their_recorded_capture(tmp_path: Path) -> None:
    model, inputs = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda(), torch.randn(8, 64).cuda()
    stop, graph = record_captures(str(tmp_path / "captures")), torch.cuda.CUDAGraph()
    with torch.no_grad():
        model(inputs)
        with torch.cuda.graph(graph):
            model(inputs)
    stop()
    graph.replay()
    with torch.profiler.profile() as profiler:
        graph.replay()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(tmp_path / "replay.json"))
    trace = ov.load(tmp_path / "replay.json", captures=tmp_path / "captures")
    found = origins(trace)
    assert len(found) == len(trace.gpu_ops) and found.is_known.all()
    assert {trace.names[number] for number in found.module} == {"nn.Module: Linear_0", "nn.Module: ReLU_0"}
