"""The laboratory's recordings that come with overlapscope: each shows what its scenario file says it must."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.renew_laboratory import renewed
from overlapscope.plugins.laboratory import catalog
from overlapscope.plugins.laboratory.comparison import check_truth
from overlapscope.plugins.laboratory.experiment import PAPER
from overlapscope.plugins.laboratory.results import ExperimentResult, read_results

LABORATORY = Path(__file__).parents[4] / "traces" / "laboratory"
RESULTS = read_results(LABORATORY)
SHIPPED_LIMIT_BYTES = 21_000_000


def names(experiment: ExperimentResult) -> str:
    return experiment.name


def test_every_experiment_was_recorded_at_the_published_sizes_and_none_failed() -> None:
    assert {experiment.name for experiment in RESULTS.experiments} == set(catalog.shipped())
    assert {experiment.scale for experiment in RESULTS.experiments} == {PAPER}
    assert {variant.status for experiment in RESULTS.experiments for variant in experiment.variants} == {"ok"}


def test_the_recordings_are_all_there_and_small() -> None:
    listed = {
        trace for experiment in RESULTS.experiments for variant in experiment.variants for trace in variant.traces
    }
    assert listed == {path.relative_to(LABORATORY).as_posix() for path in LABORATORY.rglob("*.json.gz")}
    every = (path for path in LABORATORY.parent.rglob("*") if path.is_file())
    assert sum(path.stat().st_size for path in every) < SHIPPED_LIMIT_BYTES


@pytest.mark.parametrize("experiment", RESULTS.experiments, ids=names)
def test_the_recordings_show_what_is_true_of_their_programs(experiment: ExperimentResult) -> None:
    """`docs/evaluation/diagnoses.md` lists all of it. The results are up to date by the test below."""
    failed = [
        (variant.name, analysis.trace, verdict)
        for variant in experiment.variants
        for analysis in variant.analyses
        for verdict in check_truth(variant.truth, analysis, analysis.rules)
        if not verdict.holds
    ]
    assert not failed


@pytest.mark.parametrize("experiment", RESULTS.experiments, ids=names)
def test_results_are_up_to_date_with_the_analysis_and_the_scenario_files(experiment: ExperimentResult) -> None:
    declared = {experiment.name: catalog.load(catalog.shipped()[experiment.name]).experiment}
    only = type(RESULTS)(experiments=(experiment,))
    (now,) = renewed(only, LABORATORY, declared).experiments
    assert now == experiment, "stale: run python -m benchmarks.renew_laboratory traces/laboratory"
