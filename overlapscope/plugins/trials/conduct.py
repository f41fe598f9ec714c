"""Conducts a trial: surveys the program, then runs it unchanged and with changes while time is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from overlapscope.base import clock
from overlapscope.base.words import clean, duration, listed, plural
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.plugins.trials import measure, search
from overlapscope.plugins.trials.changes import CHANGES
from overlapscope.plugins.trials.edit import edits
from overlapscope.plugins.trials.measure import StepPlan, timing
from overlapscope.plugins.trials.protocol import EndedRun, Facts, RankOutcome, Steps, Task, TrialProgram
from overlapscope.plugins.trials.result import Edit, LeftOut, Predicted, Recordings, Trial, Tried
from overlapscope.plugins.trials.sameness import same_bits
from overlapscope.plugins.trials.search import AS_IS, Candidate, Planned, Run, Runs, Settings
from overlapscope.render.progress import Progress

_MAX_RUN_RATIO: Final = 5
"""Maximum length of a run, as a multiple of the first run."""
_MIN_LIMIT_S: Final = 180.0
"""Minimum time limit of a run: compiling takes a minute or two."""
_RECORDED_RUN_RATIO: Final = 1.5
"""Length of a run under the recorder, as a multiple of a plain run; most of either is startup."""
_ALONE_RUN_RATIO: Final = 1.5
_LATER_S: Final = 5.0
"""Minimum extra time without overlapscope for a program that failed under it to count as working."""
_TOO_SHORT: Final = _RECORDED_RUN_RATIO + 3
"""Minimum number of runs left for a recording: one change needs three runs after it."""
NO_TIME: Final = "There was no time left for it; `--minutes` gives more."


class ProgramFailed(Exception):
    """The unchanged program fails."""

    def __init__(self, ended: EndedRun, *, runs_alone: bool = False) -> None:
        """Keep how the run ended; `runs_alone` if the program works without overlapscope."""
        super().__init__(ended.how)
        self.ended, self.runs_alone = ended, runs_alone


class TrialOptions(Struct, frozen=True):
    """Options of a trial, from the user."""

    minutes: float
    steps: int | None
    """Number of steps to time; None to choose it."""
    only: Collection[str]
    keep: bool = False
    """True to keep recordings."""


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


def conduct(
    program: TrialProgram, options: TrialOptions, directory: Path, progress: Progress
) -> tuple[Trial, Literal["ended", "interrupted"]]:
    """Try changes on the program. Ctrl-C ends the trial early.

    Args:
        directory: Parent of each run's directory.

    Returns:
        The trial, as far as it got, and whether Ctrl-C ended it.

    Raises:
        ProgramFailed: The unchanged program fails.
        UsageError: It has no steps or too few.
        KeyboardInterrupt: Ctrl-C was pressed twice, or before the unchanged program had run.
    """
    conductor = _Conductor(program, options, directory, progress)
    findings = conductor.survey()
    interrupted = False
    try:
        conductor.record(findings)
        conductor.ladder(findings)
        conductor.rounds(findings)
        conductor.check(findings)
    except KeyboardInterrupt:
        interrupted = True
        progress.say("Interrupted. A second Ctrl-C ends it without showing the results so far.")
    predicted: Mapping[Settings, Predicted] = {}
    try:
        predicted = predict_sets(findings)
    except KeyboardInterrupt:
        if interrupted:
            raise
        interrupted = True
    trial = summarize(
        findings,
        program.text,
        predicted=predicted,
        edited=lambda settings: edits(findings.facts, settings, program.root)[0],
        keep=options.keep,
        interrupted=interrupted,
        wall_s=conductor.wall_s,
    )
    return trial, "interrupted" if interrupted else "ended"


class _Conductor:
    """Runs a program as often as needed."""

    def __init__(self, program: TrialProgram, options: TrialOptions, directory: Path, progress: Progress) -> None:
        """Start the clock; each run has a subdirectory of `directory`."""
        self._program = program
        self._options = options
        self._directory = directory
        self._progress = progress
        self._began_ns = clock.now_ns()
        self._count = 0
        self._limit_s = max(_MIN_LIMIT_S, 60 * options.minutes)
        """Limit of the first run, whose length is unknown."""
        self._steps_by: Steps | None = None
        """Steps found by the survey."""

    @property
    def wall_s(self) -> float:
        """Seconds since the start."""
        return (clock.now_ns() - self._began_ns) / clock.NS_PER_S

    def survey(self) -> TrialFindings:
        """Survey the program, plan the steps to time, and choose the changes that fit. Raises like `conduct`."""
        self._progress.now("Looking at what the program does in its steps")
        ended, notes = self._run(measure.SURVEY, survey=True), []
        if ended.failed:
            notes.append(f"The program fails during the survey, which therefore saw only a part of it. {ended.how}")
            ended = self._without_survey(ended)
        outcome = self._usable(ended)
        self._steps_by = outcome.steps_by
        if self._steps_by is not None:
            notes.append(f"The program marks no steps and has no optimizer: its steps are {self._steps_by.label}.")
        facts = outcome.facts or Facts(cuda=False, cpus=os.cpu_count() or 1)
        fitting, left_out = search.candidates(facts, outcome.ranks, self._options.only)
        workers = max((int(candidate.values[-1]) for candidate in fitting if candidate.change == "workers"), default=0)
        wanted = (
            measure.plan(fmean(outcome.host_ns), self._options.steps, workers) if outcome.host_ns else measure.SURVEY
        )
        if not ended.complete:
            wanted = measure.shortened(wanted, outcome.all_steps)
        findings = TrialFindings(facts, outcome.ranks, wanted, fitting, left_out, notes=notes)
        self._first(findings)
        return findings

    def _first(self, findings: TrialFindings) -> None:
        """Make the first plain run, and shorten the plan if the program makes fewer steps."""
        self._progress.now("Run 1, as it is")
        ended = self._run(findings.plan)
        if not ended.complete:
            outcome = self._usable(ended)
            findings.plan = measure.shortened(findings.plan, outcome.all_steps)
            ended = self._run(findings.plan)
            if not ended.complete:
                raise self._failed(ended)
        self._limit_s = max(_MIN_LIMIT_S, _MAX_RUN_RATIO * ended.wall_s)
        self._keep(findings, _finished(Planned(AS_IS, 1), ended))
        most = (len(findings.candidates) + 1) * search.MAX_ROUNDS
        runs = min(most, 1 + int(max(0.0, self._left_s(findings)) / ended.wall_s))
        self._progress.say(
            f"Each run takes about {duration(1e9 * ended.wall_s)}, and there is time for about {runs:,}. In each, "
            f"{plural(findings.plan.timed_steps, 'step')} are timed after {findings.plan.warmup_steps} of warm-up."
        )

    def _without_survey(self, failed: EndedRun) -> EndedRun:
        """Run the program without the survey, and add the facts of the failed survey. Raises ProgramFailed."""
        failure = self._failed(failed)
        seen = next((outcome for outcome in failed.outcomes if outcome.facts is not None), None)
        if seen is None or not failure.runs_alone:
            raise failure
        self._steps_by = seen.steps_by
        ended = self._run(measure.SURVEY)
        if ended.failed:
            raise failure
        outcomes = (replace(outcome, facts=seen.facts, steps_by=seen.steps_by) for outcome in ended.outcomes)
        return replace(ended, outcomes=tuple(outcomes))

    def _failed(self, ended: EndedRun) -> ProgramFailed:
        """Run the program once without overlapscope, which may be the reason for its failure."""
        if ended.exit_code is None:
            return ProgramFailed(ended)
        self._progress.now("The program failed; running it once without overlapscope")
        alone = self._program.alone(self._new_directory(), _ALONE_RUN_RATIO * ended.wall_s + _LATER_S)
        return ProgramFailed(ended, runs_alone=alone.exit_code in (0, None))

    def _usable(self, ended: EndedRun) -> RankOutcome:
        """Return rank 0's outcome of an unchanged run. Raises ProgramFailed and UsageError."""
        outcome = ended.outcomes[0] if ended.outcomes else None
        if ended.failed:
            raise self._failed(ended)
        if outcome is None:
            raise UsageError("the program never imported torch, so it has no steps that could be timed.")
        if not outcome.all_steps:
            raise UsageError(
                "the program made no steps: it has no optimizer, and no call of a module or batch of a loader repeats. "
                "Call `overlapscope.step()` at the end of each iteration."
            )
        return outcome

    def record(self, findings: TrialFindings) -> None:
        """Record the unchanged program for predictions."""
        if findings.facts.cuda and not self._program.records:
            findings.notes.append("Nothing is predicted: only a script or module that Python starts can be recorded.")
        elif not (findings.facts.cuda and findings.candidates):
            return
        elif self._left_s(findings) < _TOO_SHORT * findings.runs.of(AS_IS)[0].wall_s:
            findings.notes.append("Nothing is predicted, because the time is needed for runs; `--minutes` gives more.")
        else:
            self._progress.now("Recording the program as it is, to predict what changes bring")
            before = self._directory / "before.trace.json.gz"
            ended = self._recorded(before)
            if before.exists():
                findings.before = before
            else:
                findings.notes.append(
                    f"Nothing is predicted, because the program could not be recorded. {clean(ended.how, 200)}"
                )

    def check(self, findings: TrialFindings) -> None:
        """Check the best set for data races; if it has some, check the next best."""
        checks = findings.facts.cuda and self._program.records
        while checks and (best := findings.best) is not None and best not in findings.races:
            self._progress.now("Looking for data races with the best set of changes")
            after = self._directory / "after.trace.json.gz"
            after.unlink(missing_ok=True)
            self._recorded(after, "--check-hazards", changes=best)
            races = _races(after)
            if races is None:
                return
            findings.races[best] = races
            findings.after = None if races else after

    def _recorded(self, trace: Path, *options: str, changes: Settings = AS_IS) -> EndedRun:
        task = Task(directory=self._new_directory(), changes=changes, steps_by=self._steps_by if changes else None)
        return self._program.record(task, self._limit_s, ("--output", str(trace), *options))

    def ladder(self, findings: TrialFindings) -> None:
        """Make the first round."""
        while True:
            findings.kept, following = search.climb(findings.candidates, findings.runs)
            if following is None:
                return
            sets = search.worth_more(findings.runs, findings.kept)
            lengths_s = [findings.runs.of(settings)[-1].wall_s for settings in sets]
            if lengths_s[0] + sum(lengths_s) > self._left_s(findings):
                break
            self._make(findings, following)
        findings.cut_short = True
        run = {setting.change for run_made in findings.runs.all for setting in run_made.planned.settings}
        changes = (candidate.change for candidate in findings.candidates)
        findings.left_out += [search.left_out(change, NO_TIME) for change in changes if change not in run]

    def rounds(self, findings: TrialFindings) -> None:
        """Make further rounds until the results are clear or time is up."""

        def left_s() -> float:
            # As long as there is no answer, none has to be checked.
            return self._left_s(findings) + (_checking_s(findings) if findings.best is None else 0.0)

        while planned := search.rounds(findings.runs, findings.kept, left_s()):
            for run in planned:
                self._make(findings, run)

    def _left_s(self, findings: TrialFindings) -> float:
        return 60 * self._options.minutes - self.wall_s - _checking_s(findings)

    def _make(self, findings: TrialFindings, planned: Planned) -> None:
        self._progress.now(f"Run {len(findings.runs.all) + 1}, {_what(planned)}")
        ended = self._run(findings.plan, planned.settings, rounded=planned.rounded)
        self._keep(findings, _finished(planned, ended))
        if planned.round == 1:
            findings.notes += _compiled(planned, ended, findings.plan.timed_steps)

    def _keep(self, findings: TrialFindings, run: Run) -> None:
        findings.runs = replace(findings.runs, all=(*findings.runs.all, run))
        if run.left_out:
            findings.left_out.append(search.left_out(run.planned.settings[-1].change, run.left_out))
        self._progress.say(_line(len(findings.runs.all), run))

    def _run(
        self, steps: measure.StepPlan, changes: Settings = AS_IS, *, survey: bool = False, rounded: bool = False
    ) -> EndedRun:
        task = Task(
            directory=self._new_directory(),
            changes=changes,
            warmup_steps=steps.warmup_steps,
            steps=steps.timed_steps,
            survey=survey,
            steps_by=self._steps_by,
            rounded=rounded,
        )
        return self._program.run(task, self._limit_s)

    def _new_directory(self) -> str:
        self._count += 1
        directory = self._directory / f"run-{self._count}"
        directory.mkdir()
        return str(directory)


def _checking_s(findings: TrialFindings) -> float:
    """Return the length of the run at the end that looks for data races."""
    return _RECORDED_RUN_RATIO * findings.runs.of(AS_IS)[0].wall_s if findings.facts.cuda else 0.0


def _races(recording: Path) -> int | None:
    """Return the number of data races that a recording states; None if it is missing or doesn't state any."""
    from overlapscope.inputs import read_trace

    try:
        return read_trace(recording, cache=False).found.get("hazards")
    except OverlapscopeError:
        return None


def _compiled(planned: Planned, ended: EndedRun, steps: int) -> list[str]:
    """Return a sentence on the timed steps in which torch compiled, if there are any."""
    count = len({at for outcome in ended.outcomes for at in outcome.compiled})
    if not count:
        return []
    of = f"Torch compiled in {count} of the {plural(steps, 'timed step')} of the first run, {_what(planned)}"
    if 2 * count >= steps:
        return [f"{of}: it counts as a part of its steps."]
    return [f"{of}: runs are compared over the other steps, since this happens once."]


def _finished(planned: Planned, ended: EndedRun) -> Run:
    if not ended.complete:
        return Run(planned, ended.wall_s, failure=ended.how)
    results = tuple(outcome.results for outcome in ended.outcomes if outcome.results is not None)
    last = planned.settings[-1].change if planned.settings else ""
    refused = ""
    # A change that fits at some places need not fit at all.
    if last and not any(outcome.effects.get(last) for outcome in ended.outcomes):
        reasons = (outcome.refused[last] for outcome in ended.outcomes if last in outcome.refused)
        refused = next(reasons, "It found nothing to change.")
    return Run(
        planned,
        ended.wall_s,
        timing(ended.outcomes),
        results if len(results) == len(ended.outcomes) else (),
        left_out=refused,
    )


def _line(number: int, run: Run) -> str:
    """Return the line to print after a run."""
    if run.timing is None:
        result = f"failed. {clean(run.failure, 200)}"
    else:
        result = run.left_out or f"{duration(run.timing.step_ns)} a step in this run"
    return f"Run {number}, {_what(run.planned)}: {result}"


def _what(planned: Planned) -> str:
    if planned.rounded:
        return "as it is, with its parameters rounded differently"
    return listed(setting.text for setting in planned.settings) or "as it is"


# -- The summary, beside predictions of `whatif` from a recording of the unchanged program --------------


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
