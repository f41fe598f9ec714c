"""Tests of recordings on a GPU:

Their contents, and that recording does not start the GPU for a program that has not used it.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import overlapscope as ov
from tests.support import forked
from tests.support.recorded import names, nothing_left_running, python, steps

torch = pytest.importorskip("torch", reason="records with torch")
known_causes = pytest.importorskip("tests.programs.known_causes", reason="records with torch")
PATIENCE_S = 60.0
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.trace.json.gz"


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    with nothing_left_running():
        yield


def test_a_prefetching_loop_far_ahead_of_its_gpu_has_no_lead_in_and_a_full_pipeline(path: Path) -> None:
    step = known_causes.PROGRAMS["healthy_prefetch"]()
    with ov.record(path, wait=10, warmup=3, active=4, plain_steps=0) as rec:
        for _ in range(40):
            step()
            rec.step()
    report = ov.analyze(ov.load(path))
    (checked,) = report.traces
    (lead_in,) = [check for check in checked.trust.checks if check.id == "lead-in"]
    assert lead_in.status == "ok"
    (device,) = checked.devices
    assert [step.name for step in device.steps] == [f"ProfilerStep#{number}" for number in (13, 14, 15, 16)]
    for recorded_step in device.steps:
        assert recorded_step.overlap.hidden_copy_pct is not None and recorded_step.overlap.hidden_copy_pct > 99
        assert recorded_step.buckets.exposed_copy_ns < 0.01 * recorded_step.span_ns


@pytest.mark.parametrize("attached", [False, True])
def test_calls_that_only_ask_are_left_out_of_the_recording_but_not_of_the_programs_later_profile(
    tmp_path: Path, *, attached: bool
) -> None:
    done = python(
        """
import collections, gzip, json
from torch.profiler import profile

def step():
    convolve(images).sum().backward()
    torch.cuda.synchronize()

def calls(rows):
    return collections.Counter(row["name"] for row in rows if row.get("cat") in ("cuda_runtime", "cuda_driver"))

convolve = torch.nn.Sequential(*[torch.nn.Conv2d(8, 8, 3) for _ in range(4)]).cuda()
images = torch.randn(8, 3 + 5, 32, 32, device="cuda")
for _ in range(5):
    step()
for _ in range(2):
    with ov.record(path, active=3, plain_steps=0, warmup=1) as rec:
        for _ in range(6):
            step()
            rec.step()
recorded = calls(json.loads(gzip.open(path).read())["traceEvents"])
with profile() as profiler:
    step()
profiler.export_chrome_trace("later.json")
later = calls(json.load(open("later.json"))["traceEvents"])
asking = {"cudaDeviceGetAttribute", "cudaPeekAtLastError"}
attached = os.environ.get("TEARDOWN_CUPTI") == "0"
assert attached == bool(asking & recorded.keys()), recorded
assert asking & later.keys(), later
launches = "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"
assert all(recorded[name] == 4 * later[name] for name in launches), (recorded, later)
""",
        tmp_path,
        **({"TEARDOWN_CUPTI": "0"} if attached else {}),
    )
    assert done.returncode == 0, done.stderr


def test_cuda_that_comes_up_during_the_recording_is_recorded(tmp_path: Path) -> None:
    done = python(
        """
with ov.record(path, active=2, plain_steps=0) as rec:
    assert not torch.cuda.is_initialized()
    torch.ones(3).sum()
    for _ in range(4):
        (torch.ones(1000, device="cuda") * 2).sum().item()
        rec.step()
assert rec.notes == (), rec.notes
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert steps(tmp_path / "x.trace.json.gz") == [0, 1, 2]
    (device,) = ov.analyze(ov.load(tmp_path / "x.trace.json.gz")).devices
    assert [step.name for step in device.steps] == ["ProfilerStep#1", "ProfilerStep#2"]


def test_a_program_without_cuda_stays_so(tmp_path: Path) -> None:
    done = python("with ov.record(path): torch.ones(3)\nassert not torch.cuda.is_initialized()", tmp_path)
    assert done.returncode == 0, done.stderr


def run(program: str, cwd: Path, *options: str) -> str:
    """Return the output of `overlapscope run` for a program, which must succeed; the trace is x.trace.json.gz."""
    (cwd / "x.py").write_text("import os, threading, torch\n" + program)
    done = forked.run(["-m", "overlapscope", "run", *options, "x.py"], cwd)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_program_that_is_run_chooses_its_gpus_itself(tmp_path: Path) -> None:
    run(
        """
os.environ["CUDA_VISIBLE_DEVICES"] = ""
assert not torch.cuda.is_available()
torch.ones(3)
""",
        tmp_path,
    )


def test_a_program_that_is_run_forks_before_it_uses_the_gpu(tmp_path: Path) -> None:
    run(
        """
child = os.fork()
value = torch.ones(3, device="cuda").sum().item()
if child == 0:
    os._exit(int(value))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
""",
        tmp_path,
    )
    assert len(ov.load(tmp_path / "x.trace.json.gz").gpu_ops)


def test_another_thread_of_a_program_that_is_run_brings_cuda_up(tmp_path: Path) -> None:
    run(
        """
thread = threading.Thread(target=torch.cuda.init)
thread.start()
thread.join()
torch.ones(1000, device="cuda").sum().item()
""",
        tmp_path,
    )
    assert len(ov.load(tmp_path / "x.trace.json.gz").gpu_ops)


def test_a_program_that_is_run_and_uses_no_gpu_has_a_trace_if_it_has_steps(tmp_path: Path) -> None:
    program = """
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight])
for _ in range({}):
    weight.sum().backward()
    optimizer.step()
"""
    assert "There is no trace: the program used no GPU and marked no step" in run(program.format(0), tmp_path)
    assert not (tmp_path / "x.trace.json.gz").exists()
    run(program.format(6), tmp_path)
    assert steps(tmp_path / "x.trace.json.gz") == [1, 2, 3, 4, 5]


def test_a_step_inside_a_capture_is_not_counted_and_harms_nothing(path: Path) -> None:
    value = torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with ov.record(path, wait=2, warmup=0, active=2, plain_steps=0) as rec:
        with torch.cuda.graph(graph):
            value.add_(1)
            rec.step()
            value.add_(1)
        for _ in range(4):
            graph.replay()
            rec.step()
    assert value[0].item() == 8
    assert steps(path) == [2, 3]
    (device,) = ov.analyze(ov.load(path)).devices
    assert [step.name for step in device.steps] == ["ProfilerStep#2", "ProfilerStep#3"]


def test_a_program_that_uses_the_gpu_no_more_after_its_recording_ends(tmp_path: Path) -> None:
    """Kineto detaches CUPTI in a later CUDA call. A process that makes no such call would wait forever."""
    done = subprocess.run(
        [sys.executable, "-c", "import torch, overlapscope as ov\nwith ov.record('x.json'): torch.ones(3).cuda()"],
        cwd=tmp_path,
        env=os.environ | forked.FINDS_US,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0


def test_plain_steps_are_timed_on_the_device_as_well(path: Path) -> None:
    data = torch.zeros(1000, device="cuda")
    with ov.record(path, active=2, plain_steps=3):
        for _ in range(20):
            data.add_(1)
            ov.step()
    plain = ov.load(path).plain_steps
    assert [len(side.device_ns) for side in (plain.before, plain.after)] == [3, 3]
    assert "overlapscope::event_record" not in gzip.decompress(path.read_bytes()).decode()


def test_a_light_recording_has_kernels_steps_and_notes_on_events(path: Path) -> None:
    data, side = torch.zeros(1000, device="cuda"), torch.cuda.Stream()
    with ov.record(path, light=True, plain_steps=0) as rec:
        for _ in range(3):
            data.add_(1)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                data.add_(1)
            torch.cuda.current_stream().wait_stream(side)
            rec.step()
    trace = ov.load(path)
    assert len(trace.cpu_ops) == 0
    assert {trace.annotations.name(row) for row in range(len(trace.annotations))} == {
        f"ProfilerStep#{number}" for number in range(3)
    }
    assert len(trace.gpu_ops) >= 6
    assert (trace.syncs.source_stream >= 0).sum() == 6
    (device,) = ov.analyze(trace).devices
    assert [step.name for step in device.steps] == ["ProfilerStep#1", "ProfilerStep#2"]


def test_a_device_that_failed_still_leaves_a_trace(tmp_path: Path) -> None:
    done = python(
        """
with ov.record(path) as rec:
    data = torch.zeros(10, device="cuda")
    rec.step()
    data[torch.tensor([99], device="cuda")]
    torch.cuda.synchronize()
""",
        tmp_path,
    )
    assert done.returncode == 1
    assert "device-side assert" in done.stderr
    assert steps(tmp_path / "x.trace.json.gz") == [0]
    ov.load(tmp_path / "x.trace.json.gz")


def test_the_unfinished_step_is_taken_out_and_no_range_is_on_the_device(path: Path) -> None:
    data = torch.zeros(1000, device="cuda")
    with ov.record(path) as rec:
        for _ in range(2):
            data.add_(1)
            rec.step()
        data.add_(1)
    assert steps(path) == [0, 1]
    assert list(names(path, "gpu_user_annotation")) == []
