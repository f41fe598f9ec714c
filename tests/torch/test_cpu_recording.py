"""Tests that a real recording of torch.profiler on the CPU is not an error: we report that it has no GPU activity."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlapscope.commands import main
from overlapscope.reading import load

torch = pytest.importorskip("torch", reason="the recording is made with torch")

STEPS = 3


@pytest.fixture(scope="module", params=["trace.json", "trace.json.gz"])
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a few training steps with stacks, shapes and memory, in a file of either ending."""
    from torch.profiler import ProfilerActivity, profile, record_function

    path = tmp_path_factory.mktemp("recording") / str(request.param)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=STEPS),
        with_stack=True,
        profile_memory=True,
        record_shapes=True,
        acc_events=True,
    ) as profiler:
        for _ in range(STEPS + 1):
            with record_function('a "quoted" range'):
                model(torch.randn(16, 64)).sum().backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return path


def test_its_host_events_are_read(recording: Path) -> None:
    trace = load(recording)
    assert len(trace.gpu_ops) == 0
    assert not trace.damage.truncated
    assert not trace.damage.lost_events


def test_analyze_says_that_there_is_no_gpu_activity(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(recording)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "no GPU activity" in printed
