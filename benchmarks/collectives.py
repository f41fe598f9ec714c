"""Write `docs/evaluation/collectives.md`: causes planted on several GPUs, predictions, and bandwidth.

    python -m benchmarks.several_gpus OUT      # on a machine with four GPUs
    python -m benchmarks.collectives OUT docs/evaluation/collectives.md

`tests/jobs.tar.xz` holds some of the recordings.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from benchmarks.collectives_judged import (
    LARGE,
    PLANTED,
    CommDiagnosis,
    PipelineDiagnosis,
    StragglerDiagnosis,
    TimedCollective,
    answers,
    exposed,
    pipelines,
    reproduced,
    timed,
)
from benchmarks.data_files import csv_text
from benchmarks.joint_gpus import PredictedFix, predictions, unpack
from benchmarks.noise import wrapped
from benchmarks.several_gpus_plan import ProgramResult
from overlapscope.base.words import listed

CLOSE_PCT = 10
"""Maximum error of a good prediction."""
AGAIN = """## Recorded later

After changes that these results led to, new recordings name the planted rank in 22 of 28 cases and the planted cause in
32 of 36. Predictions are within 10% in 46 of 63 cases, and 56 lie in the interval ([all](collectives-again.csv)).
`--check-hazards` reports the planted race on both ranks, and none in six correct programs.
"""
"""Section on programs of `scenarios/jobs` that were recorded later, with other versions."""


def stragglers(judged: Sequence[StragglerDiagnosis]) -> str:
    """Return the section on ranks that are late."""
    planted = [answer for answer in judged if answer.result.variant in PLANTED]
    even = [answer for answer in judged if answer.result.variant not in PLANTED]
    missed = listed([f"{each.result.program} on {each.result.world}" for each in planted if not each.right])
    blamed = sorted(answer.lost_pct for answer in even if answer.named is not None)
    named = f", by a median of {statistics.median(blamed):.1f}%" if blamed else ""
    return f"""## Late ranks

`ranks` names the planted rank in {sum(answer.right for answer in planted)} of {len(planted)} recordings\
{f" (not {missed})" if missed else ""}, and a rank in {len(blamed)} of {len(even)} that treat all alike{named}: the
profiler costs ranks differently. [All answers](collectives.csv)
"""


def causes(diagnoses: Sequence[CommDiagnosis]) -> str:
    """Return the section on causes of exposed communication."""
    planted = [diagnosis for diagnosis in diagnoses if diagnosis.planted is not None]
    wrong = [each for each in planted if each.named != each.planted]
    missed = listed([f"{each.planted} on {each.result.world}" for each in wrong])
    return f"""## Causes of exposed communication

The planted cause has the largest share in {len(planted) - len(wrong)} of {len(planted)} recordings\
{f" (not {missed})" if missed else ""}.
"""


def staged(diagnoses: Sequence[PipelineDiagnosis]) -> str:
    """Return the section on pipelines."""
    known = [each for each in diagnoses if each.schedule != "zero-bubble"]
    more = [
        each.found.bubble_pct - each.found.theoretical_bubble_pct
        for each in known
        if each.result.variant != "sleep" and each.found is not None and each.found.theoretical_bubble_pct is not None
    ]
    return f"""## Pipelines

Schedule and microbatches are right in {sum(each.right for each in known)} of {len(known)} recordings of 1F1B, GPipe and
interleaved 1F1B; ZBV is unknown. Bubbles are {statistics.median(more):.1f} points larger than in theory (median).
[All](collectives-pipelines.csv)
"""


def predicted(fixes: Sequence[PredictedFix]) -> str:
    """Return the section on predictions."""
    made = [fix for fix in fixes if fix.error_pct is not None]
    close = [fix for fix in made if abs(fix.error_pct or 0) <= CLOSE_PCT]
    good, chance = len(close), sum(fix.lossless for fix in close)
    inside = sum(fix.contained for fix in made)
    return f"""## Predictions

`whatif` predicts the plain step of the fixed program to within {CLOSE_PCT}% in {good} of {len(made)} cases, though in
{chance} of these the recorder had timed steps without the loss; {inside} lie in the interval.
[All](collectives-predictions.csv)
"""


def bandwidths(sweep: Sequence[TimedCollective]) -> str:
    """Return the section on bandwidth."""
    large = [each for each in sweep if each.bytes >= LARGE]
    off = [each for each in large if abs(each.off_pct) > 5]
    most = f", and {max(abs(each.off_pct) for each in off):.0f}% at most elsewhere" if off else ""
    return f"""## Bandwidth

Times from the last arrival to the end are within 5% of CUDA events around 20 calls in {len(large) - len(off)} of
{len(large)} cases of 128 MiB or more{most}. [All sizes](collectives-bandwidth.csv)
"""


def repeats(pairs: Sequence[tuple[ProgramResult, float, float]]) -> str:
    """Return the sentence on second recordings."""
    step = sorted(abs(step) for _, step, _ in pairs)
    return f"""Steps of second recordings in the same processes differ by {statistics.median(step):.1f}% (median).
"""


def shares_text(diagnosis: CommDiagnosis) -> str:
    if diagnosis.named is None:
        return f"{diagnosis.exposed_pct:.0f}% is exposed"
    return ", ".join(f"{cause} {share:.0f}%" for cause, share in list(diagnosis.shares.items())[:3])


def write_pipelines(path: Path, diagnoses: Iterable[PipelineDiagnosis]) -> None:
    """Write what is found of each pipeline."""
    rows = []
    for each in diagnoses:
        found, texts = each.found, ["", "", "", "", ""]
        if found is not None:
            theory = found.theoretical_bubble_pct
            texts = [
                str(found.schedule or ""),
                str(found.microbatches or ""),
                str(found.chunks),
                f"{found.bubble_pct:.1f}",
                "" if theory is None else f"{theory:.1f}",
            ]
        rows.append((each.result.variant, str(each.result.world), each.schedule, *texts))
    head = ("variant", "GPUs", "schedule", "found", "microbatches", "chunks", "bubble in %", "in theory in %")
    path.write_text(csv_text(head, rows))


def write_answers(path: Path, judged: Iterable[StragglerDiagnosis], diagnoses: Sequence[CommDiagnosis]) -> None:
    """Write the answer to each recording."""
    by_trace = {each.result.trace: shares_text(each) for each in diagnoses}
    rows = [
        (
            answer.result.program,
            answer.result.variant,
            str(answer.result.world),
            " ".join(answer.result.options),
            f"{statistics.median(step for each in answer.result.plain_ns for step in each) / 1e6:.2f}",
            by_trace.get(answer.result.trace, ""),
            answer.verdict.text,
        )
        for answer in judged
    ]
    head = ("program", "variant", "GPUs", "options", "plain step in ms", "exposed communication", "verdict")
    path.write_text(csv_text(head, rows))


def write_predictions(path: Path, fixes: Iterable[PredictedFix]) -> None:
    """Write each prediction, or why there is none."""
    rows = []
    for each in fixes:
        predicted, fix = each.predicted, each.fix
        ends = () if predicted is None else (predicted.value, predicted.low, predicted.high)
        shown = [f"{ns / 1e6:.3f}" for ns in ends] or ["", "", ""]
        recorded = "" if each.recorded_ns is None else f"{each.recorded_ns / 1e6:.3f}"
        error = "" if each.error_pct is None else f"{each.error_pct:+.1f}"
        steps = (f"{each.lossy_ns / 1e6:.3f}", recorded, *shown, f"{each.fixed_ns / 1e6:.3f}", error)
        rows.append((fix.program, fix.lossy, fix.fixed, fix.options, str(each.gpus), *steps, each.refusal))
    steps = (
        "plain step in ms",
        "replayed in ms",
        "predicted in ms",
        "low in ms",
        "high in ms",
        "plain step of fix in ms",
        "error in %",
    )
    path.write_text(csv_text(("program", "loss", "fix", "change", "GPUs", *steps, "refusal"), rows))


def write_bandwidth(path: Path, sweep: Iterable[TimedCollective]) -> None:
    """Write the times of each size."""
    rows = [
        (each.collective, str(each.gpus), str(each.bytes), *(f"{us:.1f}" for us in times))
        for each in sweep
        for times in [(each.events_us, each.first_us, each.recorded_us)]
    ]
    columns = ("collective", "GPUs", "bytes", "events in us", "events before in us", "recording in us")
    path.write_text(csv_text(columns, rows))


def main() -> None:
    """Write the page and its files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    unpack(options.out)
    lines = json.loads((options.out / "results.json").read_bytes())["results"]
    every = msgspec.convert(lines, list[ProgramResult])
    # Archives may lack traces of some ranks.
    results = [each for each in every if len(list((options.out / each.trace).glob("rank*"))) == each.world]
    piped = list(pipelines(options.out, results))
    judged, diagnoses = list(answers(options.out, results)), list(exposed(options.out, results))
    fixes, sweep = list(predictions(options.out, results)), list(timed(options.out, results))
    sections = (
        "# Collectives on several GPUs\n\n"
        "`python -m benchmarks.collectives` writes this page from `scenarios/jobs` on two and four H100s.\n",
        stragglers(judged),
        causes(diagnoses),
        staged(piped),
        predicted(fixes),
        bandwidths(sweep),
        repeats(list(reproduced(options.out, results))),
        AGAIN,
    )
    options.page.write_text(wrapped("\n".join(sections)) + "\n")
    write_answers(options.page.with_suffix(".csv"), judged, diagnoses)
    write_pipelines(options.page.with_name("collectives-pipelines.csv"), piped)
    write_predictions(options.page.with_name("collectives-predictions.csv"), fixes)
    write_bandwidth(options.page.with_name("collectives-bandwidth.csv"), sweep)


if __name__ == "__main__":
    main()
