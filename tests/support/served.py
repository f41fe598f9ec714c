"""Kineto files of inference servers, as these write them, and the truth about their steps by brute force."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.kineto_files import Event, call, host, kernel, memcpy, write

ENGINE, RESULTS = 1, 2
"""Threads that schedule and launch, and that wait for results."""


class Pass(NamedTuple):
    """A pass of the engine's loop. Times are in microseconds."""

    marks: Sequence[str]
    """Marks of the step, the outermost first."""
    gpu: int = 600
    kernels: int = 3
    graph: bool = False
    """True if a graph launch starts its kernels, with gaps between them."""
    schedule: int = 100
    """Time in the scheduler before the mark."""
    wait: int = 0
    """Time in which no request had arrived, before scheduling."""
    stream: int = 7
    gap: int = 2
    """Time between two kernels of the graph."""
    sample: int = 0
    """Time in which the host prepares sampling, after it waited for the forward pass; 0 if it doesn't wait."""


class Frames(NamedTuple):
    """Python functions in a server's stacks."""

    schedule: str = "vllm/v1/core/sched/scheduler.py(1832): schedule"
    wait: Sequence[str] = ("vllm/v1/engine/core.py(900): _process_input_queue", "threading.py(355): wait")
    """Functions in which it waits for requests, the outermost first."""
    polls: int = 1
    """Number of times that it looks for requests while it waits; between two looks it runs other functions."""


def write_server(
    path: Path,
    passes: Sequence[Pass],
    *,
    ahead: bool = False,
    frames: Frames | None = None,
    scheduled: bool = False,
    **top: Any,
) -> Path:
    """Write a recording.

    `ahead` is vLLM's asynchronous scheduling: another thread waits for results, so that the host marks and launches a
    pass while the one before still runs. `frames` are those of the engine's thread. `scheduled` puts a `ProfilerStep`
    around each mark, with numbers that begin at 7.
    """
    events: list[Event] = []
    now, free, correlation = 1000, 0, 0

    def launch(name: str, of: Sequence[tuple[int, int]], at: int) -> int:
        """Append a launch of ops, given by gap and length; return when the last ends."""
        nonlocal correlation, free
        correlation += 1
        events.append(call(at, 4, correlation, name=name))
        for gap, length in of:
            start = max(at + 8, free + gap)
            copies = name == "cudaMemcpyAsync"
            op = memcpy if copies else kernel
            what = {"name": "Memcpy DtoH (Device -> Pinned)"} if copies else {"name": f"gemm_{length}"}
            events.append(op(start, length, stream=each.stream, correlation=correlation, **what))
            free = start + length
        return free

    for number, each in enumerate(passes):
        if each.wait:
            if frames is not None:
                # The last look ends with the arrival of a request.
                looks = [now + each.wait * (2 * poll) // (2 * frames.polls - 1) for poll in range(frames.polls)]
                length = each.wait // (2 * frames.polls - 1)
                events += [host("python_function", name, at, length) for at in looks for name in frames.wait]
            now += each.wait
        if frames is not None:
            events.append(host("python_function", frames.schedule, now, each.schedule))
        now += each.schedule
        begin, length = now, each.gpu // each.kernels
        if each.graph:
            launch("cudaGraphLaunch", [(each.gap, length)] * each.kernels, now + 5)
            now += 20
        else:
            for at in range(each.kernels):
                launch("cudaLaunchKernel", [(0, length)], now + 5 + 10 * at)
            now += 10 * each.kernels + 10
        for depth, name in enumerate(each.marks):
            # An inner range ends before the one around it.
            events.append(host("user_annotation", name, begin + depth, now - begin - 2 * depth))
            device = {"device": 0, "stream": each.stream}
            events.append(host("gpu_user_annotation", name, begin + 8, now - begin, tid=each.stream) | {"args": device})
        if scheduled:
            events.append(host("user_annotation", f"ProfilerStep#{number + 7}", begin - 10, now - begin + 20))
        if each.sample:
            events.append(call(now + 1, free - now, 2 * 10**6 + number, name="cudaStreamSynchronize"))
            now = free + 1 + each.sample
        # Sampling follows the mark, and so does the copy of its result, for which a thread waits.
        launch("cudaLaunchKernel", [(0, 20)], now + 5)
        done = launch("cudaMemcpyAsync", [(0, 5)], now + 15)
        events.append(
            call(
                now + 22, done - now - 20, 10**6 + number, name="cudaEventSynchronize", tid=RESULTS if ahead else ENGINE
            )
        )
        now = now + 30 if ahead else done + 5
    return write(path, events, **top)


# -- TrueStep -----------------------------------------------------------------------------------------


class TrueStep(NamedTuple):
    """A step on the device, in nanoseconds."""

    start_ns: int
    end_ns: int
    busy_ns: int


def true_steps(path: Path, marks: Sequence[str]) -> list[TrueStep]:
    """Return the steps that some ranges of a file mark, in order, by looking at each microsecond.

    A step begins with the first op whose launch lies in its mark, and ends where the next one begins.
    """
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    calls = {e["args"]["correlation"]: e["ts"] for e in events if e["cat"] == "cuda_runtime"}
    ops = [e for e in events if e["cat"] in ("kernel", "gpu_memcpy")]
    busy = {at for op in ops for at in range(op["ts"], op["ts"] + op["dur"])}
    ranges = sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == "user_annotation" and e["name"] in marks
    )
    begins = []
    for start, end in ranges:
        begins.append(min(op["ts"] for op in ops if start <= calls[op["args"]["correlation"]] < end))
    last = max(op["ts"] + op["dur"] for op in ops)
    return [
        TrueStep(1000 * begin, 1000 * end, 1000 * sum(at in busy for at in range(begin, end)))
        for begin, end in zip(begins, [*begins[1:], last], strict=True)
    ]


def write_capture(path: Path, mark: str, *, captures: int = 2, launches: int = 20) -> Path:
    """Write a recording of captures of graphs, around which next to nothing runs: a kernel before each."""
    events: list[Event] = []
    now = 1000
    for number in range(captures):
        events += [call(now, 4, 3 * number + 1), kernel(now + 8, 3, correlation=3 * number + 1)]
        begin = now + 100
        events.append(call(begin, 5, 3 * number + 2, name="cudaStreamBeginCapture"))
        for at in range(launches):
            events.append(call(begin + 10 + 50 * at, 4, 10_000 + launches * number + at))
        now = begin + 50 * launches + 20
        events.append(call(now, 30, 3 * number + 3, name="cudaStreamEndCapture"))
        now += 100
    events.append(host("user_annotation", mark, 990, now))
    return write(path, events)
