"""Update of results without running anything, for results that are shipped.

    python -m benchmarks.renew_laboratory DIR [OTHER...]

The experiments of the OTHER directories are copied into DIR. Then all recordings in DIR are analyzed again, and the
declarations of the experiments are taken from the current scenario files.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from overlapscope.base.saved import decode
from overlapscope.plugins.laboratory import RESULTS, catalog
from overlapscope.plugins.laboratory.experiment import Experiment
from overlapscope.plugins.laboratory.results import ExperimentResult, Results, VariantResult, merged, write_results
from overlapscope.plugins.laboratory.runner import analyse, declared


def measured(directory: Path) -> Results:
    """Return the results in a directory without their analyses, whichever version made these."""
    file = directory / RESULTS
    if not file.exists():
        return Results()
    content = decode(file.read_bytes(), dict[str, Any])
    for experiment in content["experiments"]:
        for variant in experiment["variants"]:
            variant.pop("analyses", None)
    return msgspec.convert(content, Results)


def collect(directory: Path, other: Path) -> None:
    """Copy another directory's experiments, with their traces, into this one."""
    results = measured(directory)
    for experiment in measured(other).experiments:
        results = merged(results, experiment)
        for trace in (trace for variant in experiment.variants for trace in variant.traces):
            (directory / trace).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(other / trace, directory / trace)
    write_results(results, directory)


def renewed(results: Results, directory: Path, experiments: Mapping[str, Experiment]) -> Results:
    """Return the results by name, with recordings analyzed by this version and declarations from `experiments`."""
    in_order = sorted(results.experiments, key=lambda result: result.name)
    return msgspec.structs.replace(
        results,
        experiments=tuple(_experiment(result, directory, experiments.get(result.name)) for result in in_order),
    )


def _experiment(result: ExperimentResult, directory: Path, experiment: Experiment | None) -> ExperimentResult:
    current = {variant.name: variant for variant in result.variants}
    if experiment is not None:
        now = declared(experiment, result.scale, result.machine)
        # Measurements of a variant are kept. A new variant has not been run yet.
        current = {variant.name: _declared_as(current.get(variant.name, variant), variant) for variant in now.variants}
        result = msgspec.structs.replace(now, date=result.date, sizes=result.sizes)
    return msgspec.structs.replace(
        result,
        variants=tuple(
            msgspec.structs.replace(
                variant,
                analyses=analyse(
                    [directory / trace for trace in variant.traces], directory, result.plain_step_ns(variant)
                ),
            )
            for variant in current.values()
        ),
    )


def _declared_as(measured: VariantResult, now: VariantResult) -> VariantResult:
    declared = {name: getattr(now, name) for name in ("shows", "truth", "published", "wrong_expected")}
    return msgspec.structs.replace(measured, **declared)


def main(directory: Path, *others: Path) -> None:
    """Update a directory's results."""
    directory.mkdir(parents=True, exist_ok=True)
    for other in others:
        collect(directory, other)
    entries = [catalog.load(path) for path in catalog.shipped().values()]
    experiments = {entry.experiment.name: entry.experiment for entry in entries}
    write_results(renewed(measured(directory), directory, experiments), directory)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
