"""Write `docs/evaluation/collectives.md`: causes planted on several GPUs, predictions, and bandwidth.

    python -m benchmarks.several_gpus OUT      # on a machine with four GPUs
    python -m benchmarks.collectives OUT docs/evaluation/collectives.md

`tests/collectives.tar.xz` holds three of the recordings.
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
    StragglerDiagnosis,
    TimedCollective,
    answers,
    exposed,
    reproduced,
    timed,
)
from benchmarks.data_files import csv_text
from benchmarks.joint_gpus import PredictedFix, predictions, unpack
from benchmarks.noise import table, wrapped
from benchmarks.several_gpus_plan import ProgramResult

CLOSE_PCT = 10
"""Maximum error of a good prediction."""
REPRODUCED_HEAD = ("program", "GPUs", "recorded step, %", "exposed communication, %")


def stragglers(judged: Sequence[StragglerDiagnosis]) -> str:
    """Return the section on ranks that are late."""
    planted = [answer for answer in judged if answer.result.variant in PLANTED]
    even = [answer for answer in judged if answer.result.variant not in PLANTED]
    rows = [
        (
            answer.result.program,
            PLANTED[answer.result.variant][0],
            str(answer.result.world),
            "nobody" if answer.named is None else f"rank {answer.named}",
        )
        for answer in planted
        if not answer.right
    ]
    blamed = sorted(answer.lost_pct for answer in even if answer.named is not None)
    named = f", by a median of {statistics.median(blamed):.1f}% and at most {blamed[-1]:.0f}%" if blamed else ""
    return f"""## Late ranks

`ranks` names the planted rank in {sum(answer.right for answer in planted)} of {len(planted)} recordings.

{table(("program", "planted", "GPUs", "delays the others"), rows, words=4) if rows else ""}

In {len(even)} recordings that treat all ranks alike, a rank is named {len(blamed)} times{named}: GPUs differ in speed,
and the profiler costs ranks differently. [All answers](collectives.csv)
"""


def causes(diagnoses: Sequence[CommDiagnosis]) -> str:
    """Return the section on causes of exposed communication."""
    planted = [diagnosis for diagnosis in diagnoses if diagnosis.planted is not None]
    wrong = [
        (each.result.program, str(each.planted), str(each.result.world), shares_text(each))
        for each in planted
        if each.named != each.planted
    ]
    return f"""## Causes of exposed communication

The planted cause has the largest share in {len(planted) - len(wrong)} of {len(planted)} recordings.

{table(("program", "planted", "GPUs", "causes found"), wrong, words=4) if wrong else ""}
"""


def shares_text(diagnosis: CommDiagnosis) -> str:
    if diagnosis.named is None:
        return f"{diagnosis.exposed_pct:.0f}% is exposed"
    return ", ".join(f"{cause} {share:.0f}%" for cause, share in list(diagnosis.shares.items())[:3])


def predicted(fixes: Sequence[PredictedFix]) -> str:
    """Return the section on predictions."""
    made = [fix for fix in fixes if fix.error_pct is not None]
    good = [fix for fix in made if abs(fix.error_pct or 0) <= CLOSE_PCT]
    rows = [
        (
            fix.fix.program,
            fix.fix.lossy,
            f"`{fix.fix.options}`" if fix.fix.options else "",
            str(fix.gpus),
            f"{fix.lossy_ns / 1e6:.2f}",
            "" if fix.predicted is None else f"{fix.predicted.value / 1e6:.2f}",
            f"{fix.fixed_ns / 1e6:.2f}",
            "" if fix.error_pct is None else f"{fix.error_pct:+.1f}%",
        )
        for fix in fixes
    ]
    head = ("program", "loss", "change", "GPUs", "plain step, ms", "predicted", "plain step of the fix", "error")
    return f"""## Predictions

`whatif` predicts the step of the fixed program from recordings of the program with a loss. Steps were timed without
the profiler in turns. The error is at most {CLOSE_PCT}% in {len(good)} of {len(made)} predictions.
[Reasons for refusals](collectives-predictions.csv)

{table(head, rows, words=3)}
"""


def bandwidths(sweep: Sequence[TimedCollective]) -> str:
    """Return the section on bandwidth."""
    large = [each for each in sweep if each.bytes >= LARGE]
    close = [each for each in large if abs(each.off_pct) <= 5]
    rows = [
        (each.collective, str(each.gpus), f"{each.bytes >> 20}", f"{each.events_us:.0f}", f"{each.recorded_us:.0f}")
        for each in large
        if each not in close
    ]
    head = ("collective", "GPUs", "MiB", "events, us", "recording, us")
    return f"""## Bandwidth

Times from the last arrival to the end are compared with CUDA events around 20 calls. They agree within 5% in
{len(close)} of {len(large)} cases of 128 MiB or more. Smaller calls end before the next is launched.
[All sizes](collectives-bandwidth.csv)

{table(head, rows, words=1) if rows else ""}
"""


def repeats(pairs: Sequence[tuple[ProgramResult, float, float]]) -> str:
    """Return the section on second recordings."""
    rows = [(result.program, str(result.world), f"{step:+.1f}", f"{share:+.1f}") for result, step, share in pairs]
    return f"""## Second recordings

Differences of a second recording of the same program in the same processes:

{table(REPRODUCED_HEAD, rows, words=1)}
"""


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
        steps = (f"{each.lossy_ns / 1e6:.3f}", recorded, *shown, f"{each.fixed_ns / 1e6:.3f}")
        rows.append((fix.program, fix.lossy, fix.fixed, fix.options, str(each.gpus), *steps, each.refusal))
    steps = (
        "plain step in ms",
        "replayed in ms",
        "predicted in ms",
        "low in ms",
        "high in ms",
        "plain step of fix in ms",
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
    results = msgspec.convert(lines, list[ProgramResult])
    judged, diagnoses = list(answers(options.out, results)), list(exposed(options.out, results))
    fixes, sweep = list(predictions(options.out, results)), list(timed(options.out, results))
    sections = (
        "# Collectives on several GPUs\n\n"
        "`python -m benchmarks.collectives` writes this page from `scenarios/jobs` on two and four GPUs.\n",
        stragglers(judged),
        causes(diagnoses),
        predicted(fixes),
        bandwidths(sweep),
        repeats(list(reproduced(options.out, results))),
    )
    options.page.write_text(wrapped("\n".join(sections)) + "\n")
    write_answers(options.page.with_suffix(".csv"), judged, diagnoses)
    write_predictions(options.page.with_name("collectives-predictions.csv"), fixes)
    write_bandwidth(options.page.with_name("collectives-bandwidth.csv"), sweep)


if __name__ == "__main__":
    main()
