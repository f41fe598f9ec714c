"""Plain steps as overlapscope reports them, beside the measurements of separate processes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

import overlapscope
from benchmarks import plain_runs
from benchmarks.plain_runs import BEFORE, WAYS, EditEquivalent, MachineVersions, trace_path, variant_of
from benchmarks.whatif_evaluation import TRACES
from benchmarks.whatif_plain import laboratory_steps
from overlapscope.analysis.results import Device, Plain
from overlapscope.errors import UsageError
from overlapscope.prediction.result import Estimate
from overlapscope.trace.model import PlainSteps, TimedSteps

PROCESSES = 2


class UnrecordedStep(Struct, frozen=True):
    """Step in processes without a recorder."""

    step_ns: int
    """Between the medians of the processes."""
    low_ns: int
    """The lowest of them, and the highest."""
    high_ns: int
    mean_ns: int
    """Mean of all steps: more than the median if some steps wait for a loader."""


class PredictedStep(Struct, frozen=True):
    """The step after some edits."""

    pair: EditEquivalent
    step_ns: Estimate | None
    """Predicted step of the plain program; None without a prediction."""
    recorded_ns: Estimate | None
    """As predicted where the plain step is not known."""
    measured_ns: int
    why_not: str = ""

    @property
    def error_pct(self) -> float | None:
        return None if self.step_ns is None else error_pct(self.step_ns.value, self.measured_ns)

    @property
    def recorded_error_pct(self) -> float | None:
        return None if self.recorded_ns is None else error_pct(self.recorded_ns.value, self.measured_ns)

    @property
    def inside(self) -> bool | None:
        return None if self.step_ns is None else self.step_ns.low <= self.measured_ns <= self.step_ns.high


class UntoldStep(Struct, frozen=True):
    """Interval of a step as if the recorder had timed none, beside the step without a recorder."""

    plain_ns: int
    busy_ns: int
    """Time of an average recorded step in which the GPU worked."""
    low_ns: int
    high_ns: int

    @property
    def width_pct(self) -> float:
        """Width of the interval as a share of the recorded step."""
        return 100 * (1 - self.low_ns / self.high_ns)

    @property
    def low_holds(self) -> bool:
        """True if the plain step is no shorter than the lower end."""
        return self.low_ns <= self.plain_ns

    @property
    def above_pct(self) -> float:
        """By how much the plain step is longer than the recorded one; 0 if it isn't."""
        return max(0.0, error_pct(self.plain_ns, self.high_ns))


class EvaluatedRecording(Struct, frozen=True):
    """One recording."""

    program: str
    variant: str
    way: str
    bound: str
    truth: UnrecordedStep
    before_ns: int | None
    """The recorder's plain step, before and after the recording."""
    after_ns: int | None
    busy_ns: int
    """Time of a recorded step in which the GPU worked."""
    plain: Plain | None
    untold: UntoldStep
    predicted: tuple[PredictedStep, ...]

    @property
    def idle_pct(self) -> float:
        """True idle share: the part of a plain step in which the GPU was not busy."""
        return 100 * max(0.0, 1 - self.busy_ns / self.truth.step_ns)

    @property
    def corrected_idle_pct(self) -> float | None:
        if self.plain is None or self.plain.buckets is None:
            return None
        return 100 * self.plain.buckets.idle_ns / self.plain.step_ns


class _EvaluationTask(Struct, frozen=True):
    folder: Path
    program: str
    variant: str
    way: str


def evaluate(folder: Path) -> list[EvaluatedRecording]:
    """Each recording of the folder with GPU activity whose program was timed."""
    truths = _truths(folder)
    jobs = [
        _EvaluationTask(folder, name, variant_of(edits), way)
        for name, program in plain_runs.programs().items()
        for edits in [(), *program.also]
        for way in WAYS
        if (name, variant_of(edits)) in truths and trace_path(folder, name, variant_of(edits), way).exists()
    ]
    with ProcessPoolExecutor(PROCESSES) as pool:
        return [row for row in pool.map(_recorded, jobs) if row is not None]


def machine(folder: Path) -> MachineVersions:
    """Return the machine of the measurements. Raises IndexError where nothing was."""
    return plain_runs.read(folder).runs[0].timed.machine


def error_pct(said_ns: float, measured_ns: float) -> float:
    return 100 * (said_ns / measured_ns - 1)


def _truths(folder: Path) -> dict[tuple[str, str], UnrecordedStep]:
    """By program and variant."""
    by_program: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for run in plain_runs.read(folder).runs:
        by_program.setdefault((run.program, run.variant), []).append(run.timed.step_ns)
    truths = {}
    for key, processes in by_program.items():
        medians = [statistics.median(steps) for steps in processes]
        mean = statistics.fmean(ns for steps in processes for ns in steps)
        truths[key] = UnrecordedStep(
            *(round(ns) for ns in (statistics.median(medians), min(medians), max(medians), mean))
        )
    return truths


def _recorded(job: _EvaluationTask) -> EvaluatedRecording | None:
    truths, program = _truths(job.folder), plain_runs.programs()[job.program]
    trace = overlapscope.load(trace_path(job.folder, job.program, job.variant, job.way), progress=False, cache=False)
    if not trace.devices:
        return None
    bare = replace(trace, plain_steps=PlainSteps())
    (device,) = overlapscope.analyze(trace).devices
    (untold,) = overlapscope.analyze(bare).devices
    predicted = []
    for pair in program.pairs:
        after = truths.get((job.program, variant_of(pair.edits)))
        if after is None or job.variant != BEFORE:
            continue
        try:
            with_plain, without = (overlapscope.whatif(item, pair.interventions) for item in (trace, bare))
        except UsageError as error:
            why_not = str(error).removeprefix(f"{trace.source}: ")
            predicted.append(PredictedStep(pair, None, None, after.step_ns, why_not))
            continue
        why_not = "" if with_plain.replay.valid else " ".join(with_plain.replay.reasons)
        predicted.append(
            PredictedStep(pair, with_plain.predicted_step_ns, without.predicted_step_ns, after.step_ns, why_not)
        )
    return EvaluatedRecording(
        program=job.program,
        variant=job.variant,
        way=job.way,
        bound=program.bound,
        truth=truths[job.program, job.variant],
        before_ns=_median(trace.plain_steps.before),
        after_ns=_median(trace.plain_steps.after),
        busy_ns=_busy_ns(device),
        plain=device.plain,
        untold=_untold(untold, truths[job.program, job.variant].step_ns),
        predicted=tuple(predicted),
    )


def laboratory() -> dict[str, UntoldStep]:
    """Return the same of the laboratory's variants, which were timed before any profiler ran, by name of the trace."""
    rows = {}
    for path, plain_ns in laboratory_steps().items():
        trace = overlapscope.load(path, progress=False, cache=False)
        # Ranks are timed together.
        if len(trace.devices) == 1 and trace.rank is None:
            (device,) = overlapscope.analyze(trace).devices
            rows[path.relative_to(TRACES).as_posix()] = _untold(device, plain_ns)
    return rows


def _untold(device: Device, plain_ns: int) -> UntoldStep:
    frame = device.per_step or device.judged
    assert device.alone is not None and frame is not None
    busy_ns = frame.span_ns - frame.buckets.idle_ns
    return UntoldStep(plain_ns, busy_ns, device.alone.low_ns, device.alone.high_ns)


def _median(timed: TimedSteps) -> int | None:
    lengths: Sequence[int] = timed.device_ns or timed.host_ns
    return round(statistics.median(lengths)) if lengths else None


def _busy_ns(device: Device) -> int:
    """Return the median of the steps whose end is known."""
    steps = [step for step in device.steps if not step.partial]
    return round(statistics.median(step.span_ns - step.buckets.idle_ns for step in steps[:-1] or steps))
