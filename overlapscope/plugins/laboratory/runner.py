"""Runner of experiments: measured, recorded and analyzed one after another, in separate processes.

Each variant has a process of its own, so that an error or a crash ends nothing else. Results are on disk after each
variant.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.results import Device
from overlapscope.base.words import clean, plural
from overlapscope.catalog.causes import CopyCause, IdleCause
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.plugins.laboratory import process
from overlapscope.plugins.laboratory.catalog import ScenarioFile
from overlapscope.plugins.laboratory.document import digits
from overlapscope.plugins.laboratory.experiment import PAPER, Experiment, Variant
from overlapscope.plugins.laboratory.process import VariantMeasured, VariantTask, how_it_died
from overlapscope.plugins.laboratory.results import (
    Analysis,
    ExperimentResult,
    FindingSummary,
    Machine,
    VariantResult,
    VerdictSummary,
    merged,
    read_results,
    write_results,
)
from overlapscope.reading import load
from overlapscope.render.progress import Progress
from overlapscope.report.model import build
from overlapscope.report.page import DeviceReport, Page
from overlapscope.report.verdict import judge

_STYLE = {"ok": "green", "failed": "bold red", "skipped": "yellow"}
NOT_YET = "not run yet"
LOG = "output.txt"


class Plan(msgspec.Struct, frozen=True):
    """Options of a run."""

    directory: Path
    scale: str
    repeat: int


def describe_machine() -> Machine:
    """Describe the machine that experiments will run on.

    Returns:
        The machine's GPUs, driver, link, processor and versions.

    Raises:
        UsageError: If PyTorch can't use the GPU that is present.
    """
    # The commands themselves don't load torch.
    command = [sys.executable, "-X", "faulthandler", "-m", "overlapscope.plugins.laboratory.machine"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, errors="replace")
    if done.returncode:
        raise UsageError(f"this machine cannot be measured: {how_it_died(done.returncode, done.stderr)}.")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Machine)


def run(entries: Sequence[ScenarioFile], plan: Plan, machine: Machine, progress: Progress) -> list[VariantResult]:
    """Run the experiments, and replace their earlier results in the directory.

    Returns:
        The result of each variant.

    Raises:
        UsageError: If the directory can't be used.
    """
    try:
        plan.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{plan.directory}: cannot be created ({error.strerror or error}); choose another directory."
        ) from None
    return [result for entry in entries for result in _Experiment(entry, plan, machine, progress).run()]


class _Experiment:
    """A running experiment."""

    def __init__(self, entry: ScenarioFile, plan: Plan, machine: Machine, progress: Progress) -> None:
        self._experiment = entry.experiment
        self._path = entry.path
        self._plan = plan
        self._progress = progress
        self._results = read_results(plan.directory)
        self._result = declared(entry.experiment, plan.scale, machine)
        self._place = plan.directory / entry.experiment.name

    def run(self) -> tuple[VariantResult, ...]:
        """Run all variants and return their results."""
        reason = self._why_not()
        if reason:
            return self._skip(reason)
        self._place.mkdir(parents=True, exist_ok=True)
        (self._place / LOG).unlink(missing_ok=True)
        for variant in self._experiment.variants:
            self._keep(self._run_variant(variant))
        return self._result.variants

    def _skip(self, reason: str) -> tuple[VariantResult, ...]:
        """Run nothing, and keep the results of an earlier run."""
        skipped = tuple(msgspec.structs.replace(variant, error=reason) for variant in self._result.variants)
        if all(other.name != self._result.name for other in self._results.experiments):
            self._results = merged(self._results, msgspec.structs.replace(self._result, variants=skipped))
            write_results(self._results, self._plan.directory)
        for variant in skipped:
            _finished(self._progress, self._experiment.name, variant)
        return skipped

    def _why_not(self) -> str | None:
        experiment, machine = self._experiment, self._result.machine
        if experiment.sizes and self._plan.scale not in experiment.sizes:
            return f"it has no sizes for scale {self._plan.scale}"
        if experiment.gpus > len(machine.gpus):
            return f"it needs {plural(experiment.gpus, 'GPU')}; PyTorch sees {len(machine.gpus) or 'none'} here"
        return None

    def _run_variant(self, variant: Variant) -> VariantResult:
        trace = self._place / f"{variant.name}.trace.json.gz"
        with tempfile.TemporaryDirectory(prefix="overlapscope-") as directory:
            task = VariantTask(
                str(self._path), variant.name, self._plan.scale, self._plan.repeat, str(trace), directory
            )
            reports, error = process.run(task, self._experiment.ranks, lambda phase: self._phase(variant, phase))
            result = self._measured(variant, reports)
            if error is not None:
                with open(self._place / LOG, "a", errors="replace") as log:
                    log.write(f"== {variant.name}: {error}\n")
                    log.write(f"{Path(directory, process.OUTPUT).read_text(errors='replace')}\n")
                return msgspec.structs.replace(result, status="failed", error=error)
        self._phase(variant, "analyzing")
        try:
            traces = [self._plan.directory / trace for trace in result.traces]
            analyses = analyse(traces, self._plan.directory, self._result.plain_step_ns(result))
            return msgspec.structs.replace(result, analyses=analyses)
        except OverlapscopeError as fault:
            return msgspec.structs.replace(result, status="failed", error=f"its recording cannot be analyzed: {fault}")

    def _phase(self, variant: Variant, phase: str) -> None:
        self._progress.note(f"{phase} {self._experiment.name}/{variant.name}")

    def _measured(self, variant: Variant, ranks: Sequence[VariantMeasured]) -> VariantResult:
        """Return the variant with its measurements: times of the slowest rank, figures of the first."""
        result = next(other for other in self._result.variants if other.name == variant.name)
        if not ranks:
            return result
        slowest = max(ranks, key=lambda rank: rank.wall_ms.median if rank.wall_ms else 0.0)
        return msgspec.structs.replace(
            result,
            status="ok",
            error=None,
            wall_ms=slowest.wall_ms,
            host_ms=slowest.host_ms,
            figures=ranks[0].figures,
            wrong_results=ranks[0].wrong_results,
            notes=tuple(dict.fromkeys(note for rank in ranks for note in rank.notes)),
            traces=tuple(
                Path(rank.trace).relative_to(self._plan.directory).as_posix()
                for rank in ranks
                if rank.trace is not None
            ),
        )

    def _keep(self, done: VariantResult) -> None:
        variants = tuple(done if other.name == done.name else other for other in self._result.variants)
        self._result = msgspec.structs.replace(self._result, variants=variants)
        self._results = merged(self._results, self._result)
        write_results(self._results, self._plan.directory)
        _finished(self._progress, self._experiment.name, done)


def _finished(progress: Progress, experiment: str, result: VariantResult) -> None:
    """Report that a variant is done, whatever its outcome."""
    line = Text.assemble((f"{result.status:<7}", _STYLE[result.status]), f" {experiment}/{result.name}: ")
    progress.say(line.append(clean(_outcome(result))))


def _outcome(result: VariantResult) -> str:
    if result.status != "ok" or result.wall_ms is None:
        return result.error or ""
    wall = result.wall_ms
    time = f"{digits(wall.median)} ms (IQR {digits(wall.iqr, like=wall.median)}, n = {wall.n:,})"
    wrong = result.wrong_results
    counted = [f"{wrong.wrong} of {wrong.tries} results wrong"] if wrong else []
    return ", ".join([time, *counted, *(analysis.verdict.text.replace("\n", " ") for analysis in result.analyses[:1])])


def declared(experiment: Experiment, scale: str, machine: Machine) -> ExperimentResult:
    """Return the result of an experiment that has not been run."""
    return ExperimentResult(
        name=experiment.name,
        title=experiment.title,
        shows=experiment.shows,
        published_on=experiment.published_on,
        faster=experiment.faster,
        recorded=experiment.recorded,
        gpus=experiment.gpus,
        ranks=experiment.ranks,
        warmup_steps=experiment.warmup_steps,
        recorded_steps=experiment.recorded_steps,
        scale=scale,
        sizes=_plain(experiment.sizes.get(scale, {})),
        sizes_as_published=experiment.sizes.get(scale) == experiment.sizes.get(PAPER),
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine=machine,
        variants=tuple(
            VariantResult(
                name=variant.name,
                shows=variant.shows,
                parameters=_plain(variant.parameters),
                truth=variant.truth,
                published=dict(variant.published),
                wrong_expected=variant.wrong_results,
                error=NOT_YET,
            )
            for variant in experiment.variants
        ),
    )


def _plain(values: Any) -> dict[str, Any]:
    """Return arguments in a form that JSON can hold."""
    return {
        name: value if isinstance(value, bool | int | float | str | None) else str(value)
        for name, value in values.items()
    }


# -- Analysis of recordings, reduced to the contents of the report --------------------------------------
# Figures are those that `overlapscope analyze` shows of each recording with the step that the laboratory timed
# (`--plain-step`).


def analyse(paths: Sequence[Path], directory: Path, plain_step_ns: int | None = None) -> tuple[Analysis, ...]:
    """Return the analysis of each device in the traces of a variant, one for each rank. Raises UnreadableTrace.

    Their names become relative to `directory`. A trace without GPU activity has no device and adds nothing.
    """
    analyses = [analyze_trace(load(path, progress=False, cache=False)) for path in paths]
    return tuple(
        _essentials(section, section.device, paths[section.number].relative_to(directory).as_posix())
        for section in Page(build(analyses, plain_step_ns=plain_step_ns)).sections()
        if section.device is not None and section.window is not None
    )


def _essentials(section: DeviceReport, device: Device, trace: str) -> Analysis:
    trust, stalls = section.trace.trust, device.host_stalls
    verdict = judge(section)
    return Analysis(
        trace=trace,
        rank=section.trace.rank,
        device=device.device,
        trust=trust.verdict,
        doubts=tuple(check.id for check in trust.checks if check.status != "ok"),
        span_ns=device.span_ns,
        steps=section.steps,
        buckets=device.buckets,
        overlap=device.overlap,
        exposed_copy_by_cause=_judged_causes(device.exposed_copy_by_cause, CopyCause.LEAD_IN),
        idle_by_cause=_judged_causes(device.idle_by_cause, IdleCause.LEAD_IN),
        host_wait_ns=sum(stall.host_wait_ns for stall in stalls),
        host_idle_ns=sum(stall.idle_caused_ns for stall in stalls),
        copies=device.copies,
        findings=tuple(msgspec.convert(finding, FindingSummary, from_attributes=True) for finding in section.findings),
        verdict=VerdictSummary(level=verdict.level, text=verdict.answer),
    )


def _judged_causes(by_cause: dict[str, int], lead_in: str) -> dict[str, int]:
    """Return the causes that explain any of the judged time."""
    return {str(cause): ns for cause, ns in by_cause.items() if ns and cause != lead_in}
