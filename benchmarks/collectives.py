"""Write `docs/evaluation/collectives.md`: causes planted on several GPUs, and bandwidth beside CUDA events.

    python -m benchmarks.several_gpus OUT      # on a machine with four GPUs; then unpack OUT/traces-*.tar in OUT
    python -m benchmarks.collectives OUT docs/evaluation/collectives.md

`tests/collectives.tar.xz` holds three of the recordings.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from benchmarks.data_files import csv_text
from benchmarks.noise import table, wrapped
from benchmarks.several_gpus_plan import ProgramResult
from overlapscope import load
from overlapscope.ranks.comparison import compare
from overlapscope.ranks.join import Joined
from overlapscope.ranks.reduced import ReducedRank, reduce
from overlapscope.ranks.verdict import RanksVerdict, judge

PLANTED = {
    "sleep": ("rank 1 sleeps 20 ms in each step", 1),
    "slow-loader": ("the loader of rank 1 takes 20 ms", 1),
    "skew": ("60% of the tokens go to rank 0", 0),
}
"""What a variant plants, and on which rank. The others change all ranks alike."""
RECORDED = {
    "all_reduce": "allreduce",
    "all_gather_into_tensor": "_allgather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_allv",
}
"""Names that PyTorch records for the collectives of the sweep."""
LARGE = 128 << 20
ALONE = re.compile(r"Rank (\d+)(?: delays|'s GPU is idle for)")


class StragglerDiagnosis(Struct, frozen=True):
    """What is said of a recording."""

    result: ProgramResult
    verdict: RanksVerdict
    lost_pct: float
    """Share of the others' time that the costliest rank delays them by."""

    @property
    def named(self) -> int | None:
        """Rank that delays the others; None if none, or if the delay may be the profiler's."""
        match = ALONE.search(self.verdict.text)
        return None if match is None or "all of this delay" in self.verdict.text else int(match[1])

    @property
    def right(self) -> bool:
        planted = PLANTED.get(self.result.variant)
        return self.named == (planted[1] if planted else None)


def ranks_of(folder: Path) -> list[ReducedRank]:
    return [rank for path in sorted(folder.glob("rank*")) for rank in reduce(load(str(path)))]


def answers(out: Path, results: list[ProgramResult]) -> Iterator[StragglerDiagnosis]:
    for result in results:
        if result.variant and result.job in ("four", "two", "two-b"):
            joined = Joined()
            for rank in ranks_of(out / result.trace):
                joined.add(rank)
            report = joined.report()
            late = report.straggler
            yield StragglerDiagnosis(result, judge(report), (late.lost_pct or 0.0) if late is not None else 0.0)


class TimedCollective(Struct, frozen=True):
    """A collective of one size: by CUDA events, and from the last arrival to the end in the recording."""

    gpus: int
    collective: str
    bytes: int
    events_us: float
    recorded_us: float

    @property
    def off_pct(self) -> float:
        return 100 * (self.events_us / self.recorded_us - 1)


def timed(out: Path, results: list[ProgramResult]) -> Iterator[TimedCollective]:
    for result in results:
        if result.program != "bandwidth":
            continue
        waits = compare(ranks_of(out / result.trace)).waits
        kernels, took = waits.meetings.kernels, defaultdict(list)
        for row in waits.meetings.row[waits.latest.row].tolist():
            name = kernels.kinds[int(kernels.kind[row])].collective
            took[name, int(kernels.bytes[row])].append(int(kernels.end_ns[row] - kernels.start_ns[row]))
        for figure in result.figures:
            name, size = str(figure["collective"]), int(figure["bytes"])
            each = took[RECORDED[name], size]
            yield TimedCollective(result.world, name, size, float(figure["us"]), statistics.fmean(each) / 1000)


def page(judged: list[StragglerDiagnosis], sweep: list[TimedCollective]) -> str:
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
    large = [each for each in sweep if each.bytes >= LARGE]
    close = [each for each in large if abs(each.off_pct) <= 5]
    sizes = [
        (each.collective, str(each.gpus), f"{each.bytes >> 20}", f"{each.events_us:.0f}", f"{each.recorded_us:.0f}")
        for each in large
        if each not in close
    ]
    blamed = sorted(answer.lost_pct for answer in even if answer.named is not None)
    return wrapped(f"""# Collectives on several GPUs

`python -m benchmarks.collectives` writes this page from `scenarios/jobs` on two and four H200s.

## Planted causes

`ranks` names the planted rank in {sum(answer.right for answer in planted)} of {len(planted)} recordings. In the others,
launched work hides most of the sleep, and a step takes only 1 to 5% longer:

{table(("program", "planted", "GPUs", "delays the others"), rows, words=4)}

In {len(even)} recordings that treat all ranks alike, a rank is named {len(blamed)} times, by a median of
{statistics.median(blamed):.1f}% and at most {blamed[-1]:.0f}%: GPUs differ in speed, and the profiler costs ranks
differently. [All answers](collectives.csv)

## Bandwidth

Times from the last arrival to the end are compared with CUDA events around 20 calls. They agree within 5% in
{len(close)} of {len(large)} cases of 128 MiB or more, with these exceptions. Smaller calls end before the next is
launched. [All sizes](collectives-bandwidth.csv)

{table(("collective", "GPUs", "MiB", "events, us", "recording, us"), sizes, words=1)}
""")


def main() -> None:
    """Write the page and its two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    lines = json.loads((options.out / "results.json").read_bytes())["results"]
    results = [ProgramResult(**{**line, "options": tuple(line.get("options", ()))}) for line in lines]
    judged, sweep = list(answers(options.out, results)), list(timed(options.out, results))
    options.page.write_text(page(judged, sweep) + "\n")
    rows = [
        (
            answer.result.program,
            answer.result.variant,
            str(answer.result.world),
            " ".join(answer.result.options),
            f"{statistics.median(step for each in answer.result.plain_ns for step in each) / 1e6:.2f}",
            answer.verdict.text,
        )
        for answer in judged
    ]
    head = ("program", "variant", "GPUs", "options", "plain step in ms", "verdict")
    options.page.with_suffix(".csv").write_text(csv_text(head, rows))
    sizes = [
        (each.collective, str(each.gpus), str(each.bytes), f"{each.events_us:.1f}", f"{each.recorded_us:.1f}")
        for each in sweep
    ]
    columns = ("collective", "GPUs", "bytes", "events in us", "recording in us")
    options.page.with_name("collectives-bandwidth.csv").write_text(csv_text(columns, sizes))


if __name__ == "__main__":
    main()
