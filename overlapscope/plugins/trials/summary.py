"""Summary of a trial's runs, beside predictions of `whatif` from a recording of the unchanged program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from statistics import fmean

from msgspec import Struct, field

from overlapscope.errors import OverlapscopeError
from overlapscope.plugins.trials import measure, search
from overlapscope.plugins.trials.changes import CHANGES
from overlapscope.plugins.trials.measure import StepPlan
from overlapscope.plugins.trials.protocol import Facts
from overlapscope.plugins.trials.result import Edit, LeftOut, Predicted, Recordings, Trial, Tried
from overlapscope.plugins.trials.sameness import same_bits
from overlapscope.plugins.trials.search import AS_IS, Candidate, Runs, Settings


class TrialFindings(Struct):
    """State of a trial, which grows with each run."""

    facts: Facts
    ranks: int
    plan: StepPlan
    candidates: list[Candidate]
    left_out: list[LeftOut]
    runs: Runs = field(default_factory=Runs)
    kept: Settings = AS_IS
    """Changes that later changes were tried on top of."""
    cut_short: bool = False
    """True if not all planned runs were made."""
    notes: list[str] = field(default_factory=list)
    before: Path | None = None
    after: Path | None = None
    """Recording with the best set of changes."""
    races: dict[Settings, int] = field(default_factory=dict)
    """Number of races that the hazard checker found, for the sets it was run on."""

    @property
    def best(self) -> Settings | None:
        """The recommended set; None if there is none."""
        return search.best(self.runs, racing={settings for settings, races in self.races.items() if races})


def summarize(
    findings: TrialFindings,
    program: str,
    *,
    predicted: Mapping[Settings, Predicted],
    edited: Callable[[Settings], Edit],
    keep: bool,
    interrupted: bool,
    wall_s: float,
) -> Trial:
    """Summarize the runs so far, with at least a timed run of the unchanged program."""
    runs = findings.runs
    tried = runs.tried()
    step_ns, spread = step_ns_of(runs, AS_IS), measure.spread_ns(_timings(runs, AS_IS))
    best, results = findings.best, [run.results for run in runs.of(AS_IS) if run.results]
    return Trial(
        program=program,
        device_name=findings.facts.device_name,
        ranks=findings.ranks,
        baseline_step_ns=step_ns or 0,
        baseline_low_ns=round(spread[0]) if spread else None,
        baseline_high_ns=round(spread[1]) if spread else None,
        baseline_runs=len(_timings(runs, AS_IS)),
        warmup_steps=findings.plan.warmup_steps,
        timed_steps=findings.plan.timed_steps,
        repeatable=len(results) > 1 and all(same_bits(results[0], other) for other in results[1:]),
        changes=tuple(_tried(findings, settings, predicted.get(settings), edited(settings)) for settings in tried),
        left_out=tuple(findings.left_out),
        best=None if best is None else tried.index(best),
        recordings=Recordings(
            before=None if findings.before is None or not keep else str(findings.before),
            after=None if findings.after is None or not keep else str(findings.after),
        ),
        interrupted=interrupted or findings.cut_short,
        notes=tuple(findings.notes),
        wall_s=wall_s,
        plain_runs_s=sum(run.wall_s for run in runs.all),
    )


def _tried(findings: TrialFindings, settings: Settings, predicted: Predicted | None, edit: Edit) -> Tried:
    runs = findings.runs
    *others, last = settings
    before = tuple(others)
    total, added = runs.change(settings), runs.change(settings, before)
    of_all, alone = ((None, None, None) if change is None else change.percentages for change in (total, added))
    as_is = step_ns_of(runs, AS_IS)
    failure = runs.failed(settings)
    return Tried(
        change=last.change,
        value=last.value,
        title=CHANGES[last.change].title,
        after=tuple(setting.text for setting in others),
        predicted_pct=predicted,
        # The unchanged step scaled by the measured ratio, which a slower machine in some rounds does not affect.
        step_ns=step_ns_of(runs, settings) if total is None or not as_is else round(as_is * (1 + total.pct / 100)),
        measured_pct=of_all[0],
        measured_low_pct=of_all[1],
        measured_high_pct=of_all[2],
        added_pct=alone[0],
        added_low_pct=alone[1],
        added_high_pct=alone[2],
        verdict="unknown" if added is None else added.verdict,
        kept=settings == findings.kept[: len(settings)],
        runs=len(_timings(runs, settings)),
        results="unknown" if failure else runs.results(settings),
        races=findings.races.get(settings),
        failure=failure,
        edit=edit,
    )


def _timings(runs: Runs, settings: Settings) -> list[measure.Timing]:
    return [run.timing for run in runs.of(settings) if run.timing is not None]


def step_ns_of(runs: Runs, settings: Settings) -> int | None:
    """Return the mean over a set's runs; None if none succeeded."""
    timings = _timings(runs, settings)
    return round(fmean(timing.step_ns for timing in timings)) if timings else None


# -- Predictions -------------------------------------------------------------------------------------


def predict_sets(findings: TrialFindings) -> Mapping[Settings, Predicted]:
    """Predict the tried sets of changes, in percent of the unchanged step, if the program was recorded.

    Returns:
        The prediction of each set that has one. A recording that can't be used adds a note to the findings.
    """
    from overlapscope.inputs import read_trace
    from overlapscope.prediction.predict import predict

    step_ns = step_ns_of(findings.runs, AS_IS)
    if findings.before is None or step_ns is None:
        return {}

    @cache
    def predicted(interventions: tuple[str, ...]) -> Predicted | None:
        result = predict(trace, interventions, plain_step_ns=step_ns).result
        if result.gain_ns is None:
            return None
        gain = result.gain_ns
        value, low, high = (-100 * saved / result.baseline_step_ns for saved in (gain.value, gain.high, gain.low))
        return Predicted(value=value, low=low, high=high)

    predictions = {}
    try:
        trace = read_trace(findings.before, cache=False)
        for settings in findings.runs.tried():
            parts = [CHANGES[setting.change].interventions(setting.value) for setting in settings]
            result = predicted(tuple(name for part in parts for name in part)) if all(parts) else None
            if result is not None:
                predictions[settings] = result
    except OverlapscopeError as error:
        findings.notes.append(f"Nothing is predicted: {error}")
        return {}
    return predictions
