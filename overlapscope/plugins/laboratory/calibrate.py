"""Calibration of a GPU, by recording a program of a few seconds that does one thing at a time.

The constants are observed in a recording, because every prediction starts from one too: they include what the profiler
adds to a call. That addition is timed separately.
"""

from __future__ import annotations

import datetime
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from overlapscope.errors import UsageError
from overlapscope.plugins.laboratory import machine
from overlapscope.prediction.calibration import Calibration
from overlapscope.prediction.hardware import observe
from overlapscope.reading import load
from overlapscope.recorder.options import Options
from overlapscope.recorder.recording import SilentRecording

COPY_BYTES = tuple(1 << power for power in range(10, 29, 2))
"""Sizes of copies: 1 KiB to 256 MiB."""

GRAPH_KERNELS = (1, 10, 100, 1000)

_PASSES = 3
"""Number of passes over everything, so that a disturbance of one pass doesn't matter."""
_COPIES = 8
"""Number of copies of each size in a single direction: half of them one by one, half in a queue."""
_BOTH_WAYS = 12
"""Number of copies of each size in both directions at once."""
_BOTH_WAYS_FROM = 1 << 20
_LAUNCHES = 60
_CHAIN = 100
"""Number of kernels in a queue, far fewer than the queue holds."""
_HANDOVERS = 40
_HANDED_BYTES = 1 << 20
_PAUSES_S = (0.0, 50e-6, 1e-3)
"""Pauses of the host before a launch on an idle stream."""
_HOLD_MS = 25.0
"""Time for which the device is kept busy while a queue is filled."""
_TIMED_EVENTS = 2000
_COST_ROUNDS = 3


def calibrate() -> Calibration:
    """Measure the first GPU that PyTorch sees.

    Returns:
        The measured constants of the GPU and its links.

    Raises:
        UsageError: If there is no GPU.
    """
    if not torch.cuda.is_available():
        raise UsageError(
            "PyTorch finds no CUDA device; calibrate on a machine with the GPU in question. Without a "
            "calibration, constants come from the trace and from the built-in table of an H200."
        )
    try:
        here = machine.describe()
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "calibration.json.gz"
            record(path)
            constants = observe(load(path, progress=False))
        constants = msgspec.structs.replace(constants, **recording_costs())
    except RuntimeError as error:  # PyTorch raises it, also when memory runs out.
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UsageError(
            f"this GPU cannot be measured ({first}); stop other programs that use it, and try again."
        ) from error
    return Calibration(
        gpu=here.gpus[0],
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        torch=here.torch,
        cuda=here.cuda,
        driver=here.driver,
        constants=constants,
    )


def record(path: Path) -> None:
    """Record the program into a trace file."""
    with torch.no_grad():
        program = _Program()
        program.run()  # One-time costs stay out of the recording.
        torch.cuda.synchronize()
        with SilentRecording(path, Options(plain_steps=0)):
            for _ in range(_PASSES):
                program.run()
            torch.cuda.synchronize()


class _Program:
    """Program that does everything to be measured, one after another."""

    def __init__(self) -> None:
        largest = COPY_BYTES[-1]
        self._host = [torch.empty(largest, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._gpu = [torch.empty(largest, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self._streams = [torch.cuda.Stream() for _ in range(2)]
        self._small = torch.zeros(1 << 10, device="cuda")
        self._other = torch.zeros(1 << 10, device="cuda")
        self._matrix = torch.randn(2048, 2048, device="cuda")
        self._product = torch.empty_like(self._matrix)
        self._multiply()
        self._graphs = [self._captured(kernels) for kernels in GRAPH_KERNELS]
        self._multiplications = max(1, round(_HOLD_MS / self._multiplication_ms()))

    def run(self) -> None:
        for size in COPY_BYTES:
            for direction in (self._upload, self._download):
                self._copies(direction, size)
            if size >= _BOTH_WAYS_FROM:
                self._both_ways(size)
        self._launches()
        self._chain()
        self._handovers()
        self._synchronizes()
        self._replays()

    def _multiply(self) -> None:
        torch.mm(self._matrix, self._matrix, out=self._product)

    def _multiplication_ms(self) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(20):
            self._multiply()
        begin.record()
        for _ in range(10):
            self._multiply()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 10

    def _hold(self) -> None:
        """Keep the current stream busy while queues are filled."""
        for _ in range(self._multiplications):
            self._multiply()

    def _captured(self, kernels: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(kernels):
                self._small.add_(1.0)
        return graph

    # -- Copies ------------------------------------------------------------------------------------

    def _upload(self, size: int) -> None:
        self._gpu[0][:size].copy_(self._host[0][:size], non_blocking=True)

    def _download(self, size: int) -> None:
        self._host[1][:size].copy_(self._gpu[1][:size], non_blocking=True)

    def _copies(self, copy: Callable[[int], None], size: int) -> None:
        """Copy in a single direction."""
        stream = torch.cuda.current_stream()
        for number in range(_COPIES):
            copy(size)
            if number < _COPIES // 2:
                stream.synchronize()
        stream.synchronize()

    def _both_ways(self, size: int) -> None:
        """Copy in both directions at once, each on its own stream, starting together."""
        current = torch.cuda.current_stream()
        self._hold()
        for stream in self._streams:
            stream.wait_stream(current)
        for _ in range(_BOTH_WAYS):
            for stream, copy in zip(self._streams, (self._upload, self._download), strict=True):
                with torch.cuda.stream(stream):
                    copy(size)
        torch.cuda.synchronize()

    # -- Launches ----------------------------------------------------------------------------------

    def _launches(self) -> None:
        """Launch kernels on an idle device.

        First they are launched in a row by a host that is slower than they are, then each after the host waited.
        """
        stream = torch.cuda.current_stream()
        for _ in range(2 * _LAUNCHES):
            self._small.add_(1.0)
        stream.synchronize()
        for number in range(_LAUNCHES):
            _pause(_PAUSES_S[number % len(_PAUSES_S)])
            self._small.add_(1.0)
            stream.synchronize()

    def _chain(self) -> None:
        """Queue all kernels before the first of them starts."""
        self._hold()
        for _ in range(_CHAIN):
            self._small.add_(1.0)
        torch.cuda.synchronize()

    def _handovers(self) -> None:
        """Alternate copies and kernels on two streams, each waiting for the other's last op through an event."""
        copies, kernels = self._streams
        copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copies):
            self._hold()
        for number in range(_HANDOVERS):
            kernels.wait_stream(copies)
            with torch.cuda.stream(kernels):
                self._multiply()
            copies.wait_stream(kernels)
            with torch.cuda.stream(copies):
                (self._upload if number % 2 else self._download)(_HANDED_BYTES)
        torch.cuda.synchronize()

    def _synchronizes(self) -> None:
        """Call synchronizes that wait for a kernel, and ones that have nothing to wait for."""
        stream, event = torch.cuda.current_stream(), torch.cuda.Event()
        for _ in range(_LAUNCHES // 3):
            for synchronize in (stream.synchronize, torch.cuda.synchronize, event.synchronize):
                self._multiply()
                event.record()
                synchronize()
                synchronize()

    def _replays(self) -> None:
        """Replay graphs of different lengths on an idle device."""
        stream = torch.cuda.current_stream()
        for graph in self._graphs:
            for number in range(6):
                _pause(_PAUSES_S[number % len(_PAUSES_S)])
                graph.replay()
                stream.synchronize()


def _pause(seconds: float) -> None:
    """Keep the host busy; `time.sleep` would take longer than requested."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


# -- Cost of recording -----------------------------------------------------------------------------


def recording_costs() -> dict[str, int]:
    """Return the cost of recording on this machine's host for each kind of event.

    The keys are `op_cost_ns`, `call_cost_ns` and `frame_cost_ns` (`prediction.constants`). Loops are timed alternately
    with and without a profiler. A GPU is required.
    """
    stream = torch.cuda.current_stream()
    loops: dict[str, tuple[Callable[[], object], bool]] = {
        "op_cost_ns": (lambda: torch.empty(0), False),
        "call_cost_ns": (stream.query, False),
        "frame_cost_ns": (lambda: None, True),
    }
    return {name: _added_ns(event, stacks=stacks) for name, (event, stacks) in loops.items()}


def _added_ns(event: Callable[[], object], *, stacks: bool) -> int:
    rounds = (_recorded_ns(event, stacks=stacks) - _plain_ns(event) for _ in range(_COST_ROUNDS))
    return max(0, round(statistics.median(rounds)))


def _plain_ns(event: Callable[[], object]) -> float:
    begun = time.perf_counter_ns()
    for _ in range(_TIMED_EVENTS):
        event()
    return (time.perf_counter_ns() - begun) / _TIMED_EVENTS


def _recorded_ns(event: Callable[[], object], *, stacks: bool) -> float:
    with tempfile.TemporaryDirectory() as directory:
        recording = SilentRecording(Path(directory) / "costs.json", Options(plain_steps=0, stacks=stacks))
        with recording:
            return _plain_ns(event)
