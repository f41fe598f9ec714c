"""Process that runs a variant of an experiment.

python -m overlapscope.plugins.laboratory.worker TASK

Under `torchrun`, each rank does the same. The parent process holds the other end of the worker's stdin, and the worker
exits when that is closed, so that nothing stays on the GPU after the parent has died.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from overlapscope.base.child import end_with_stdin
from overlapscope.plugins.laboratory import catalog
from overlapscope.plugins.laboratory.experiment import Experiment, Program, Variant
from overlapscope.plugins.laboratory.process import Phase, VariantMeasured, VariantTask
from overlapscope.plugins.laboratory.results import TimeSpread

_ERROR_LIMIT = 400
_BUDGET_S = 3.0
"""Time for a variant's iterations, in seconds. It is exceeded only for the first `_MIN_ITERATIONS` iterations."""
_MIN_ITERATIONS, _MAX_ITERATIONS = 5, 1000
_WARM_UP = 2


def main(task: VariantTask) -> None:
    """Run the variant and report it; the traceback of an error goes to stderr."""
    threading.Thread(target=end_with_stdin, daemon=True).start()
    run = _VariantRun(task, int(os.environ.get("RANK", "0")))
    try:
        run.run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # A program that calls sys.exit has failed too.
        traceback.print_exc()
        run.report(ended=True, error=_sentence(error, task.path))
    else:
        run.report(ended=True)


def _sentence(error: BaseException, path: str) -> str:
    """Return the error's first line, and the innermost line of the scenario file in its traceback."""
    first = next(iter(str(error).strip().splitlines()), "")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    places = traceback.extract_tb(error.__traceback__)
    place = [*places[-1:], *(frame for frame in places if frame.filename == path)][-1]
    return f"{text[:_ERROR_LIMIT]} ({Path(place.filename).name}:{place.lineno} in {place.name})"


class _VariantRun:
    """One variant on one rank."""

    def __init__(self, task: VariantTask, rank: int) -> None:
        self._task = task
        self._report = VariantMeasured(rank=rank, pid=os.getpid())
        self._file = Path(task.directory, f"rank{rank}.json")

    def report(self, **more: Any) -> None:
        """Add to the report."""
        self._report = msgspec.structs.replace(self._report, **more)
        half = self._file.with_suffix(".half")
        half.write_bytes(msgspec.json.encode(self._report))
        os.replace(half, self._file)

    def run(self) -> None:
        self._begin("preparing")
        experiment = catalog.load(Path(self._task.path)).experiment
        (variant,) = (candidate for candidate in experiment.variants if candidate.name == self._task.variant)
        program = self._prepared(experiment, variant)
        try:
            self._begin("timing")
            wall, host = measure(program.step, repeat=self._task.repeat)
            self.report(wall_ms=wall, host_ms=host)
            if program.figures is not None:
                measured = program.figures().items()
                # JSON can't hold other numbers.
                figures = {name: float(value) if math.isfinite(value) else None for name, value in measured}
                self.report(figures=figures)
            if program.count_wrong is not None:
                self.report(wrong_results=program.count_wrong())
            self._begin("recording")
            self._record(experiment, program)
        finally:
            if program.close is not None:
                program.close()

    def _prepared(self, experiment: Experiment, variant: Variant) -> Program:
        if experiment.gpus:
            import torch

            # Each rank has a GPU of its own.
            local = int(os.environ.get("LOCAL_RANK", "0"))
            if torch.cuda.is_available() and local < torch.cuda.device_count():
                torch.cuda.set_device(local)
        sizes = experiment.sizes.get(self._task.scale, {})
        prepared = experiment.prepare(**{**sizes, **variant.parameters})
        return prepared if isinstance(prepared, Program) else Program(prepared)

    def _record(self, experiment: Experiment, program: Program) -> None:
        from overlapscope.recorder.recording import record

        step = program.recorded_step or program.step
        recording = record(
            self._task.trace,
            wait=0,
            warmup=experiment.warmup_steps,
            active=experiment.recorded_steps,
            steps_by="marks",
            plain_steps=0,  # The variant was already measured without the recorder.
            **experiment.recorder,
        )
        with recording as rec:
            for _ in range(experiment.warmup_steps + experiment.recorded_steps):
                step()
                rec.step()
        self.report(trace=str(rec.path), notes=tuple(rec.notes))

    def _begin(self, phase: Phase) -> None:
        self.report(phases=(*self._report.phases, phase))


def measure(step: Callable[[], object], *, repeat: int) -> tuple[TimeSpread, TimeSpread]:
    """Time at least `repeat` iterations without the profiler, each starting on an idle device.

    Clock and statistics are those of `torch.utils.benchmark`.

    Returns:
        The times until the device has finished, and the times until the call returns.
    """
    for _ in range(_WARM_UP):
        estimate, _returned = _once(step)
    count = _agreed(max(_MIN_ITERATIONS, repeat, min(_MAX_ITERATIONS, int(_BUDGET_S / max(estimate, 1e-9)))))
    times = [_once(step) for _ in range(count)]
    wall, host = zip(*times, strict=True)
    return _spread(wall), _spread(host)


def _once(step: Callable[[], object]) -> tuple[float, float]:
    from torch.utils import benchmark

    begin = benchmark.timer()  # Waits for the device, if there is one.
    step()
    returned = time.perf_counter()
    return benchmark.timer() - begin, returned - begin


def _spread(seconds: Sequence[float]) -> TimeSpread:
    from torch.utils import benchmark

    measurement = benchmark.Measurement(1, list(seconds), benchmark.TaskSpec("step()", setup=""))
    return TimeSpread(median=1e3 * measurement.median, iqr=1e3 * measurement.iqr, n=len(seconds))


def _agreed(count: int) -> int:
    """Return the first rank's count on every rank, because the iterations of a job wait for each other."""
    import torch

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return count
    shared: list[int] = [count]
    torch.distributed.broadcast_object_list(shared, src=0)
    return shared[0]


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=VariantTask))
