"""Recordings of the captures of CUDA graphs, which a program writes while it captures them."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from overlapscope.base.output import tell
from overlapscope.base.words import clean
from overlapscope.recorder.session import not_the_programs, profiler_running
from overlapscope.recorder.trace_file import write
from overlapscope.recorder.wrapping import Undo, around, together


def record_captures(folder: str) -> Undo:
    """Record each capture of a CUDA graph by this process into a folder, with ops, modules and lines.

    A capture while a profiler runs is in that profiler's recording. Failures are printed, and never raised.

    Returns:
        A function that ends this.
    """
    import torch
    from torch.profiler.profiler import _KinetoProfile  # documented, and exported by `torch.profiler`

    running: dict[int, _KinetoProfile] = {}
    # The program may change its directory.
    directory, numbers = Path(folder).absolute(), count()

    def start(graph: Any) -> None:
        if profiler_running():
            return
        profiler = _KinetoProfile(with_stack=True)
        with not_the_programs():
            profiler.prepare_trace()
        profiler.start_trace()
        running[id(graph)] = profiler

    def stop(graph: Any) -> None:
        profiler = running.pop(id(graph), None)
        if profiler is not None:
            profiler.stop_trace()
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / f"graph_capture_{os.getpid()}_{next(numbers):05}.json.gz"
            write(profiler.export_chrome_trace, path)

    def begin(capture: Callable[..., Any], graph: Any, *args: Any, **options: Any) -> Any:
        _try(start, graph)
        try:
            return capture(graph, *args, **options)
        except BaseException:
            _try(stop, graph)
            raise

    def end(capture: Callable[..., Any], graph: Any) -> Any:
        try:
            return capture(graph)
        finally:
            _try(stop, graph)

    return together(
        around(torch.cuda.CUDAGraph, "capture_begin", begin), around(torch.cuda.CUDAGraph, "capture_end", end)
    )


def _try(step: Callable[[Any], None], graph: Any) -> None:
    try:
        step(graph)
    except Exception as error:
        tell(f"overlapscope: the capture of a CUDA graph is not recorded: {clean(str(error), 200)}")
