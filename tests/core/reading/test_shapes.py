"""Tests that the shapes of ops' inputs show which kernels may read a copy's data."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import overlapscope as ov
from overlapscope.prediction.predict import predict
from overlapscope.prediction.result import WhatIf
from overlapscope.reading import files, load
from overlapscope.reading.op_args import read_inputs, signature
from overlapscope.trace.model import Trace
from tests.support.kineto_files import Event, call, host, kernel, memcpy, write

MS = 1000.0
STEPS = 4
BATCH, WEIGHT = [64, 1024], [32, 32]
FLOATS = 64 * 1024
RECORDED = {"record_shapes": 1}


def op(name: str, ts: float, dur: float, *dims: Any, types: list[str] | None = None) -> Event:
    """Return a CPU op, by default with floats as inputs."""
    return host("cpu_op", name, ts, dur) | {
        "args": {"Input Dims": list(dims), "Input type": types or ["float" for _ in dims]}
    }


class SimulatedProgram:
    """A host that launches something on stream 7 every 20 us, and the GPU's ops; times in us."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._now = self._free = 100.0
        self._numbers = count(1)
        self._step_began: float | None = None

    def step(self) -> None:
        self._end_step()
        self._step_began = self._now

    def sync(self) -> None:
        end = max(self._now, self._free) + 5
        self.events.append(call(self._now, end - self._now, next(self._numbers), name="cudaDeviceSynchronize"))
        self._now = end + 10

    def upload(self, dims: list[int], ms: float = 1, *, bytes_each: int = 4) -> None:
        size = bytes_each
        for dim in dims:
            size *= dim
        self._launch(op("aten::copy_", 0, 0, dims, dims), "cudaMemcpyAsync", ms, bytes=size)

    def download(self, dims: list[int], ms: float = 1) -> None:
        self._launch(
            op("aten::copy_", 0, 0, dims, dims),
            "cudaMemcpyAsync",
            ms,
            name="Memcpy DtoH (Device -> Pinned)",
            bytes=4 * dims[0] * dims[1],
        )

    def kernel(self, ms: float, *dims: Any, name: str = "aten::mm", types: list[str] | None = None) -> None:
        """Add a kernel of an op with these inputs."""
        self._launch(op(name, 0, 0, *dims, types=types), "cudaLaunchKernel", ms)

    def bare_kernel(self, ms: float) -> None:
        self._launch(None, "cudaLaunchKernel", ms)

    def view(self, name: str, dims: list[int]) -> None:
        self.events.append(op(name, self._now, 2, dims))
        self._now += 5

    def _launch(self, around: Event | None, launch: str, ms: float, **copy: Any) -> None:
        number, now = next(self._numbers), self._now
        if around is not None:
            self.events.append(around | {"ts": now, "dur": 12})
        self.events.append(call(now + 4, 5, number, name=launch))
        begins = max(now + 10, self._free + 1)
        self._free = begins + ms * MS
        op = memcpy if copy else kernel
        self.events.append(op(begins, ms * MS, **({"stream": 7, "correlation": number} | copy)))
        self._now += 20

    def _end_step(self) -> None:
        if self._step_began is not None:
            number = sum(event["name"].startswith("ProfilerStep") for event in self.events)
            name = f"ProfilerStep#{number}"
            self.events.append(host("user_annotation", name, self._step_began, self._now - self._step_began - 1))

    def file(self, path: Path, **top: Any) -> Path:
        self._end_step()
        self._step_began = None
        return write(path, self.events, **(RECORDED | top))


def repeated(step: Callable[[SimulatedProgram], object], *, waits: bool = True) -> SimulatedProgram:
    """Return steps that each end with a synchronize, if the host `waits`; otherwise it runs far ahead."""
    program = SimulatedProgram()
    for _ in range(STEPS):
        program.step()
        step(program)
        if waits:
            program.sync()
    return program


def read(path: Path) -> Trace:
    return load(path, progress=False, cache=False)


def both(program: SimulatedProgram, tmp_path: Path, *asked: str) -> tuple[WhatIf, WhatIf]:
    """Predicted with the shapes, and without."""
    trace = read(program.file(tmp_path / "t.json"))
    without = replace(trace, flags={}, cpu_ops=replace(trace.cpu_ops))
    results = [predict(item, asked or ["side-stream"]).result for item in (trace, without)]
    assert all(result.predicted_step_ns is not None for result in results)
    return results[0], results[1]


def step_us(result: WhatIf) -> tuple[float, float, float]:
    step = result.predicted_step_ns
    assert step is not None
    return step.low / 1000, step.value / 1000, step.high / 1000


def one_buffer_us(result: WhatIf) -> float:
    """Return how much longer the step is if buffers do not take turns."""
    return max(assumption.cost_ns or 0 for assumption in result.assumptions) / 1000


def shown(result: WhatIf) -> list[bool]:
    return [assumption.shown for assumption in result.assumptions]


# -- what reads a copy ----------------------------------------------------------------------------


def test_a_kernel_of_other_shapes_runs_beside_the_copy_before_it(tmp_path: Path) -> None:
    def step(program: SimulatedProgram) -> None:
        program.upload(BATCH)
        program.kernel(2, WEIGHT, WEIGHT)
        program.kernel(1, WEIGHT, [1024, 64])

    exact, guessed = both(repeated(step), tmp_path)
    low, value, high = step_us(exact)
    # 1 ms of copy beside 2 ms of kernel, then the reader; the host's part of a step is some 45 us.
    assert value == pytest.approx(3 * MS, abs=60)
    assert value == pytest.approx(exact.baseline_step_ns / 1000 - 1 * MS, abs=25)
    assert step_us(guessed)[1] == pytest.approx(4 * MS, abs=60), "by program order the first kernel needs it"
    assert step_us(guessed)[0] < 0.77 * 4 * MS
    assert low > 0.95 * value and high < 1.1 * value
    assert shown(exact) == [True, False, False] and shown(guessed) == [False, False]
    assert "as many elements" in exact.assumptions[-1].text and "4 copies" in exact.assumptions[-1].text


def test_what_reads_it_is_not_taken_to_be_needed_by_nothing(tmp_path: Path) -> None:
    def step(program: SimulatedProgram) -> None:
        program.upload(BATCH, 2)
        program.kernel(1, BATCH, BATCH)

    exact, guessed = both(repeated(step), tmp_path)
    assert step_us(guessed)[0] < 0.8 * step_us(guessed)[1]
    assert step_us(exact)[0] > 0.97 * step_us(guessed)[1]


def test_a_buffer_is_read_last_by_the_kernel_of_its_size(tmp_path: Path) -> None:
    def step(program: SimulatedProgram) -> None:
        program.upload(BATCH, 2)
        program.kernel(1, BATCH, WEIGHT)
        program.kernel(3, WEIGHT, WEIGHT)

    exact, guessed = both(repeated(step, waits=False), tmp_path)
    assert step_us(exact)[1] == step_us(guessed)[1] == pytest.approx(4 * MS, abs=60)
    assert one_buffer_us(guessed) == pytest.approx(2 * MS, abs=60)
    assert one_buffer_us(exact) == pytest.approx(0, abs=60), "it is copied beside the kernel that does not read it"
    assert step_us(exact)[2] < step_us(guessed)[2] - 1.9 * MS
    assert shown(exact)[:2] == [True, False], "that there are two buffers is not shown"


def test_a_download_is_overwritten_by_a_kernel_of_its_size(tmp_path: Path) -> None:
    def step(program: SimulatedProgram) -> None:
        program.kernel(1, BATCH, BATCH)
        program.download(BATCH, 2)
        program.kernel(3, WEIGHT, WEIGHT)

    exact, guessed = both(repeated(step), tmp_path)
    assert step_us(exact)[1] == step_us(guessed)[1] == pytest.approx(4 * MS, abs=60)
    assert one_buffer_us(guessed) == pytest.approx(2 * MS, abs=60)
    # No kernel of the step has such an input, so the next may be any.
    assert step_us(exact)[2] == step_us(guessed)[2]


def test_a_download_that_a_later_kernel_overwrites_runs_beside_those_between(tmp_path: Path) -> None:
    def step(program: SimulatedProgram) -> None:
        program.kernel(1, BATCH, BATCH)
        program.download(BATCH, 2)
        program.kernel(3, WEIGHT, WEIGHT)
        program.kernel(1, BATCH, BATCH)

    exact, guessed = both(repeated(step), tmp_path)
    assert one_buffer_us(guessed) == pytest.approx(2 * MS, abs=60)
    assert one_buffer_us(exact) == pytest.approx(0, abs=60)
    assert not any(shown(exact)), "shapes do not say which kernel makes what is downloaded"


def a_part_of_it(program: SimulatedProgram) -> None:
    program.view("aten::slice", BATCH)
    program.kernel(2, WEIGHT)


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(lambda program: program.bare_kernel(2), id="kernel-without-op"),
        pytest.param(lambda program: program.kernel(2, WEIGHT, [], types=["float", "TensorList"]), id="long-list"),
        pytest.param(
            lambda program: program.kernel(2, WEIGHT, [], name="aten::index", types=["float", ""]), id="indices"
        ),
        pytest.param(lambda program: program.kernel(2, WEIGHT, [], name="mine::f", types=["float", ""]), id="object"),
        pytest.param(lambda program: program.kernel(2, WEIGHT, name="MulBackward0"), id="backward-node"),
        pytest.param(a_part_of_it, id="part"),
        pytest.param(lambda program: program.kernel(2, [WEIGHT, BATCH], types=["TensorList"]), id="list"),
    ],
)
def test_what_may_read_it_is_taken_to(tmp_path: Path, between: Callable[[SimulatedProgram], object]) -> None:
    def step(program: SimulatedProgram) -> None:
        program.upload(BATCH)
        between(program)
        program.kernel(1, BATCH)

    exact, guessed = both(repeated(step), tmp_path)
    assert step_us(exact)[1] == step_us(guessed)[1] == pytest.approx(4 * MS, abs=60)


def test_a_part_that_is_copied_to_is_read_as_the_whole(tmp_path: Path) -> None:
    def step(program: SimulatedProgram) -> None:
        program.view("aten::select", [8, *BATCH])
        program.upload(BATCH)
        program.kernel(1, WEIGHT)
        program.kernel(1, [8, *BATCH])
        program.kernel(1, BATCH)

    exact, _ = both(repeated(step), tmp_path)
    # The copy runs beside the first kernel alone.
    assert step_us(exact)[1] == pytest.approx(3 * MS, abs=60)


def test_without_a_reader_in_the_step_program_order_holds(tmp_path: Path) -> None:
    def step(program: SimulatedProgram) -> None:
        program.upload(BATCH)
        program.kernel(2, WEIGHT)

    exact, guessed = both(repeated(step), tmp_path)
    assert step_us(exact) == step_us(guessed) and not any(shown(exact)) and len(exact.assumptions) == 2


@pytest.mark.parametrize("size", [2, 8])
def test_a_copy_of_other_bytes_than_its_op_says_is_not_known(tmp_path: Path, size: int) -> None:
    def step(program: SimulatedProgram) -> None:
        program.upload(BATCH, bytes_each=size)
        program.kernel(2, WEIGHT)
        program.kernel(1, BATCH)

    exact, guessed = both(repeated(step), tmp_path)
    assert step_us(exact) == step_us(guessed)


# -- looking them up ------------------------------------------------------------------------------


def three_things(program: SimulatedProgram) -> None:
    program.upload(BATCH)
    program.kernel(2, WEIGHT)
    program.kernel(1, BATCH)


def small(tmp_path: Path, **top: Any) -> Path:
    return repeated(three_things).file(tmp_path / "t.json", **top)


def read_by(trace: Trace) -> list[tuple[int, ...]]:
    inputs = read_inputs(trace)
    assert inputs is not None
    return [inputs.signatures[number].elements if number >= 0 else () for number in inputs.number.tolist()]


def packed(path: Path, form: str) -> Path:
    text = path.read_bytes()
    if form == "bare":
        text = json.dumps(json.loads(text)["traceEvents"]).encode()
    elif form == "gz":
        text = gzip.compress(text)
    elif form == "zst":
        zstd = pytest.importorskip("backports.zstd")
        text = zstd.compress(text)
    path.write_bytes(text)
    return path


@pytest.mark.parametrize("form", ["plain", "bare", "gz", "zst"])
def test_shapes_are_read_from_every_form_of_a_file(tmp_path: Path, form: str) -> None:
    trace = read(packed(small(tmp_path, baseTimeNanoseconds=1790857026000000000), form))
    trace = replace(trace, flags={"record_shapes": True})
    assert read_by(trace) == [(FLOATS,), (1024,), (FLOATS,)] * STEPS


def test_shapes_of_a_real_recording_are_all_there() -> None:
    path = Path(__file__).parents[3] / "traces" / "mixed_workloads" / "small_transformer_everything.json.gz"
    trace = read(path)
    ops = read_by(trace)
    linear = trace.cpu_ops.named(lambda name: name == "aten::linear").nonzero()[0]
    assert {8 * 64 * 256, 256 * 256, 256} <= {item for row in linear.tolist() for item in ops[row]}
    result = predict(trace, ["side-stream"]).result
    assert result.assumptions[0].shown, "the first kernel reads the batch"


def test_nothing_is_known_without_shapes_recorded(tmp_path: Path) -> None:
    assert read_inputs(read(small(tmp_path, record_shapes=0))) is None


def lost(path: Path) -> None:
    path.unlink()


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def other_times(path: Path) -> None:
    content = json.loads(path.read_text())
    for event in content["traceEvents"]:
        event["ts"] += 3
    path.write_text(json.dumps(content))


def other_names(path: Path) -> None:
    path.write_text(path.read_text().replace("aten::", "atem::"))


def other_order(path: Path) -> None:
    content = json.loads(path.read_text())
    content["traceEvents"].insert(0, {"ph": "M", "name": "process_name", "pid": 1, "args": {}})
    path.write_text(json.dumps(content))


def no_json(path: Path) -> None:
    path.write_text("[" * 100_000)


def shorter(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes())[:200])


@pytest.mark.parametrize("change", [lost, a_directory, a_pipe, other_times, other_names, other_order, no_json, shorter])
def test_a_file_that_is_no_longer_the_same_tells_nothing(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = small(tmp_path)
    trace = read(path)
    change(path)
    assert read_inputs(trace) is None
    assert predict(trace, ["side-stream"]).result.predicted_step_ns is not None


@pytest.mark.parametrize(
    ("dims", "types"),
    [
        (None, ["float"]),
        ([[64, 1024]], None),
        ([[64, 1024]], ["float", "float"]),
        ("[[64, 1024]]", "float"),
        ([[64, "1024"]], ["float"]),
        ([[64, -1024]], ["float"]),
        ([[64, 1.5]], ["float"]),
        ([[64, True]], ["float"]),
        ([[2**62, 2**62]], ["float"]),
        ([[10**30]], ["float"]),
        ([[1] * 10_000], ["float"]),
        ([{"64": 1024}], ["float"]),
        ([[64, 1024]], [{}]),
        ([[64, 1024]], [["float"]]),
        ([5], ["TensorList"]),
        ([[[64], 5]], ["TensorList"]),
        ({}, {}),
        (1e308, 0),
    ],
)
def test_odd_shapes_tell_nothing(tmp_path: Path, dims: Any, types: Any) -> None:
    program = repeated(three_things)
    for event in program.events:
        if event["name"] == "aten::mm":
            event["args"] = {"Input Dims": dims, "Input type": types}
    exact, guessed = both(program, tmp_path)
    assert step_us(exact)[1:] == step_us(guessed)[1:]


@pytest.mark.parametrize("text", [b"", b"[", b"[" * 100_000, b"\xff", b"NaN", b'["\xff"]'])
def test_a_signature_that_is_not_json_tells_nothing(text: bytes) -> None:
    assert signature(text, b'["float"]').elements == () and not signature(b"[[2]]", text).whole


def test_damage_in_a_file_costs_no_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 1 << 16)
    program = repeated(three_things)
    program.events += [{"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 200.0, "s": "t"}] * 2_000
    program.events += [op("aten::mm", 300, 5, BATCH), op("aten::mm", 310, 5, BATCH)]
    path = program.file(tmp_path / "t.json")
    path.write_text(path.read_text().replace('"ts": 300', '"odd": NaN, "ts": 300'))
    trace = read(path)
    assert trace.damage.repaired_events == 1 and len(trace.cpu_ops) == 3 * STEPS + 2
    inputs = read_inputs(trace)
    assert inputs is not None and (inputs.number >= 0).sum() == 3 * STEPS + 2


def test_shapes_are_read_only_for_copies_that_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(trace: Trace) -> None:
        raise AssertionError

    monkeypatch.setattr("overlapscope.reading.op_args.read_inputs", refuse)
    trace = read(small(tmp_path))
    predict(trace, ["graph"])
    ov.check(trace, {"budgets": {"step_time": {"max": "1 s"}}})
    with pytest.raises(AssertionError):
        predict(trace, ["side-stream"])
