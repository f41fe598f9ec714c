"""Tests of recording windows that neither steps nor the clock open and close, but a range.

Every program here is a process of its own; `test_windows_by_time` has the windows of the clock.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.errors import UsageError
from overlapscope.recorder.destination import window_path
from tests.support import forked
from tests.support.recorded import names, steps, timed
from tests.support.run_command import HEAD, run

pytest.importorskip("torch", reason="records with torch")


def run_as_it_is(program: str, cwd: Path) -> None:
    """Run a program that records by itself."""
    done = forked.run(["-c", HEAD + program], cwd)
    assert done.returncode == 0, done.stderr


class TestARange:
    EPOCHS = "for epoch in range(3):\n    with record_function('epoch'):\n        for _ in range(4): work('in'); ov.step()\n    for _ in range(8): work('out'); ov.step()"  # fmt: skip  # noqa: E501

    def test_from_its_entry_until_it_is_left(self, tmp_path: Path) -> None:
        output = run("--capture-range epoch --warmup 1 --plain-steps 3", self.EPOCHS, tmp_path)
        range_names = names(tmp_path / "x.json")
        assert range_names.count("epoch") == 1 and range_names.count("in") == 4 and "out" not in range_names
        # The step that was under way when it opened is none of its steps, nor is the one when it closed.
        assert steps(tmp_path / "x.json") == [1, 2, 3]
        assert ov.load(tmp_path / "x.json").warm_up_steps == 1
        assert timed(tmp_path / "x.json") == (0, 3)
        assert output == []

    def test_one_that_is_never_entered(self, tmp_path: Path) -> None:
        output = run("--capture-range epochs", self.EPOCHS, tmp_path)
        assert output[0] == "There is no trace: the program never entered a range epochs on its main thread."

    def test_those_of_nvtx_lie_within_one_another(self, tmp_path: Path) -> None:
        # PyTorch for CPUs has no NVTX.
        program = (
            "from torch.cuda import nvtx\n"
            "class Stub:\n    rangePushA = staticmethod(lambda name: 0)\n    rangePop = staticmethod(lambda: 0)\n"
            "nvtx._nvtx = Stub\n"
            "with nvtx.range('outer'):\n    work('before')\n    nvtx.range_push('chosen')\n"
            "    with nvtx.range('chosen'): work('in')\n    work('in')\n    nvtx.range_pop()\n    work('after')\n"
        )
        run("--capture-range chosen", program, tmp_path)
        assert names(tmp_path / "x.json") == ["in", "in"]

    def test_between_the_calls_of_the_cuda_runtime(self, tmp_path: Path) -> None:
        # PyTorch for CPUs has no such module, which `torch.cuda.cudart()` gives.
        program = (
            "class Runtime:\n    cudaProfilerStart = cudaProfilerStop = staticmethod(lambda: 0)\n"
            "torch._C._cudart = Runtime\n"
            "with ov.record('y.json', capture_range='cudaProfilerApi'):\n    work('before')\n"
            "    Runtime.cudaProfilerStart()\n    work('in')\n    Runtime.cudaProfilerStop()\n    work('after')\n"
        )
        run_as_it_is(program, tmp_path)
        assert names(tmp_path / "y.json") == ["in"]

    def test_nothing_is_left_of_it_behind_the_window(self, tmp_path: Path) -> None:
        program = (
            "enter = record_function.__enter__\n"
            "with ov.record('y.json', capture_range='chosen', plain_steps=0):\n"
            "    with record_function('chosen'): assert record_function.__enter__ is not enter\n"
            "    assert record_function.__enter__ is enter\n"
        )
        run_as_it_is(program, tmp_path)

    def test_scripted_ranges_still_compile(self, tmp_path: Path) -> None:
        program = (
            "@torch.jit.script\ndef scripted(x):\n    with record_function('inner'): return x + 1\n"
            "with record_function('chosen'): scripted(torch.ones(1))\n"
        )
        run("--capture-range chosen", program, tmp_path)
        assert sorted(names(tmp_path / "x.json")) == ["chosen", "inner"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("runs/x.trace.json.gz", "runs/x-2.trace.json.gz"),
        ("x.json", "x-2.json"),
        ("runs/x.traces/rank3.trace.json.gz", "runs/x-2.traces/rank3.trace.json.gz"),
    ],
)
def test_further_traces_have_numbers(path: str, expected: str) -> None:
    assert window_path(Path(path), 2) == Path(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"duration_s": 1, "active": 2}, "delay_s or duration_s and active both choose what is recorded"),
        ({"capture_range": "x", "delay_s": 0}, "capture_range and delay_s or duration_s both choose"),
        ({"capture_range": "x", "slow_step": 2}, "slow_step and capture_range both choose"),
        ({"delay_s": float("nan")}, "delay_s is nan; it must be 0 or more"),
        ({"duration_s": 0}, "duration_s is 0; it must be more than 0"),
        ({"slow_step": 1}, "slow_step is 1; it must be more than 1"),
        ({"slow_step": 2, "warmup": 0}, "slow_step needs a warmup"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, float], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        ov.record(tmp_path / "x.json", **options)  # type: ignore[arg-type]
