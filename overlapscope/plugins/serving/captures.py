"""Recordings of the captures of CUDA graphs, which a program writes while it captures them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlapscope.base.output import tell
from overlapscope.recorder.wrapping import Undo, around, together

if TYPE_CHECKING:
    from torch.profiler import profile


def record_captures(folder: str) -> Undo:
    """Record each capture of a CUDA graph by this process into a folder, with ops, modules and lines.

    A capture while a profiler runs is in that one's recording.

    Returns:
        A function that ends this.
    """
    import torch

    running: dict[int, profile] = {}
    # The program may change its directory.
    directory, numbers = Path(folder).absolute(), count()

    def begin(capture: Callable[..., Any], graph: Any, *args: Any, **options: Any) -> Any:
        if not torch.autograd.profiler._is_profiler_enabled:
            running[id(graph)] = torch.profiler.profile(with_stack=True)
            running[id(graph)].start()
        try:
            return capture(graph, *args, **options)
        except BaseException:
            _stop(running.pop(id(graph), None), None)
            raise

    def end(capture: Callable[..., Any], graph: Any) -> Any:
        path = directory / f"graph_capture_{os.getpid()}_{next(numbers):05}.json.gz"
        try:
            return capture(graph)
        finally:
            _stop(running.pop(id(graph), None), path)

    return together(
        around(torch.cuda.CUDAGraph, "capture_begin", begin), around(torch.cuda.CUDAGraph, "capture_end", end)
    )


def _stop(profiler: profile | None, path: Path | None) -> None:
    """Stop a profiler, and write its recording if there is a path for it."""
    if profiler is None:
        return
    with suppress(RuntimeError):
        profiler.stop()
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                profiler.export_chrome_trace(str(path))
            except OSError as error:
                tell(f"overlapscope: the capture of a CUDA graph is not recorded: {error}")
