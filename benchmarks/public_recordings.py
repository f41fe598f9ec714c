"""Write `docs/evaluation/public-recordings.md`: other people's recordings, counted again from their files.

    python -m benchmarks.public_recordings JOBS docs/evaluation/public-recordings.md

`JOBS` has a folder for each job of `public_recordings.toml`, with its recordings, which this repository does not keep,
and `ascend` with the files `trace_view.json` of `test/data/pytorch/text` of Ascend's msinsight. The figures are
compared with those of `public_recordings_raw`.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final, NamedTuple

import overlapscope
from benchmarks.data_files import csv_text
from benchmarks.noise import table, wrapped
from benchmarks.public_recordings_raw import PublicOp, ops_of, sweep, waited
from overlapscope.analysis.figures import Buckets, Period
from overlapscope.analysis.results import Device
from overlapscope.ranks.comm_result import GroupCollective
from overlapscope.ranks.join import Joined
from overlapscope.ranks.reduced import reduce
from overlapscope.ranks.result import RankRow, RanksReport

SOURCES: Final = Path(__file__).with_suffix(".toml")


class Counts(NamedTuple):
    """Figures that were counted again, and those that differ."""

    ranks: int
    windows: int
    rows: int
    waits: int
    different: tuple[str, ...]


def counted(files: Sequence[Path], *, of_one_job: bool) -> Counts:
    """Count the figures of recordings again, those between ranks only if all are of the same job."""
    parts = [JobComparison(part) for part in ([files] if of_one_job else [[path] for path in files])]
    return Counts(
        ranks=max(part.ranks for part in parts),
        windows=sum(part.windows for part in parts),
        rows=sum(part.rows for part in parts),
        waits=sum(part.waits for part in parts),
        different=tuple(each for part in parts for each in part.different),
    )


class JobComparison:
    """Comparison of a job's recordings."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.windows = self.rows = self.waits = self.ranks = 0
        self.different: list[str] = []
        self._ops = {str(path): ops_of(path) for path in files}
        self._devices: dict[tuple[str, int], Device] = {}
        joined = Joined()
        for trace in overlapscope.analyze(files).traces:
            for device in trace.devices:
                self._devices[_file(trace.source), device.device] = device
                self._compare_windows(_file(trace.source), device)
            for rank in reduce(overlapscope.load(trace.source)) if trace.devices else ():
                joined.add(rank)
        report = joined.report()
        self.ranks = sum(row.joined for row in report.ranks)
        if self.ranks > 1:
            self._compare_groups(report)

    def _compare_windows(self, file: str, device: Device) -> None:
        ops = self._ops[file][device.device]
        periods: list[tuple[str, Device | Period]] = [("window", device)]
        periods += [(step.name, step) for step in device.steps]
        for name, period in periods:
            sums = sweep(ops, period.window.start_ns, period.window.end_ns)
            mine = Buckets(
                compute_ns=sums.first["compute"],
                exposed_comm_ns=sums.first["comm"],
                exposed_copy_ns=sums.first["copy"],
                exposed_other_ns=sums.first["other"],
                idle_ns=sums.first["idle"],
            )
            self.windows += 1
            if mine != period.buckets or sums.comm != period.engines.comm_ns:
                self.different.append(f"{file}, {name}")

    def _compare_groups(self, report: RanksReport) -> None:
        rows = [row for row in report.ranks if row.joined]
        ops = [self._ops[_file(row.source)][row.device] for row in rows]
        windows = [self._window(row, report) for row in rows]
        sums = [sweep(mine, *window) for mine, window in zip(ops, windows, strict=True)]
        assert report.communication is not None
        for each in report.communication.rows:
            collective = (each.collective, each.group, each.group_ranks)
            busy, exposed = (
                sum(times) for times in zip(*((s.busy[collective], s.exposed[collective]) for s in sums), strict=True)
            )
            self.rows += 1
            if (busy, exposed) != (each.time.busy_ns, each.time.exposed_ns):
                self.different.append(str(collective))
            self._compare_waits(each, rows, ops, windows)

    def _compare_waits(
        self,
        each: GroupCollective,
        rows: Sequence[RankRow],
        ops: Sequence[list[PublicOp]],
        windows: Sequence[tuple[int, int]],
    ) -> None:
        collective = (each.collective, each.group, each.group_ranks)
        of_ranks = [sorted(op for op in mine if op.collective == collective) for mine in ops]
        if not each.time.waiting_ns or len({len(mine) for mine in of_ranks}) > 1:
            return
        judged_from = [
            self._devices[_file(row.source), row.device].window.start_ns + (row.lead_in_ns or 0) for row in rows
        ]
        self.waits += 1
        if waited(of_ranks, judged_from, windows) != each.time.waiting_ns:
            self.different.append(f"waiting in {collective}")

    def _window(self, row: RankRow, report: RanksReport) -> tuple[int, int]:
        """Return the window from the first to the last common step, or all after the lead-in without any."""
        device = self._devices[_file(row.source), row.device]
        joined = [other for other in report.ranks if other.joined]
        names = [
            name
            for number, name in enumerate(report.step_names)
            if all(other.step_spans_ns[number] is not None for other in joined)
        ]
        if not names:
            return device.window.start_ns + (row.lead_in_ns or 0), device.window.end_ns
        steps = {step.name: step.window for step in device.steps}
        return steps[names[0]].start_ns, steps[names[-1]].end_ns


def _file(source: str) -> str:
    return re.sub(r"@\d+$", "", source)


def msprof_differences(path: Path) -> list[int]:
    """Return by how many nanoseconds compute, communication and exposed communication differ from msprof's own sums.

    The process `Overlap Analysis`, which overlapscope does not read, has these as rows.
    """
    events = json.loads(path.read_bytes(), parse_float=Decimal)
    pids = {event["pid"] for event in events if event.get("args", {}).get("name") == "Overlap Analysis"}
    rows: defaultdict[str, list[PublicOp]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and event["pid"] in pids:
            begin = Decimal(event["ts"])
            rows[event["name"]].append(PublicOp(round(begin * 1000), round((begin + event["dur"]) * 1000), "comm"))
    theirs = [
        sweep(rows[name], min(rows[name]).start, max(op.end for op in rows[name])).comm
        for name in ("Computing", "Communication", "Communication(Not Overlapped)")
    ]
    (device,) = overlapscope.analyze(path).devices
    ours = (device.engines.compute_ns, device.engines.comm_ns, device.buckets.exposed_comm_ns)
    return [abs(mine - other) for mine, other in zip(ours, theirs, strict=True)]


# -- The page ---------------------------------------------------------------------------------------------


def page(jobs: dict[str, dict[str, str]], counts: dict[str, Counts], ascend: Sequence[Sequence[int]]) -> str:
    """Return the page with a row for each job, and a sentence on the differences of recordings of Ascend."""
    windows, rows, waits, different = (
        sum(figures)
        for figures in zip(
            *((each.windows, each.rows, each.waits, len(each.different)) for each in counts.values()), strict=True
        )
    )
    lines = [
        (
            jobs[name]["what"],
            str(each.windows),
            str(each.rows),
            str(each.waits),
        )
        for name, each in counts.items()
        if each.ranks > 1 and jobs[name].get("of", "one job") == "one job"
    ]
    head = ("job", "windows", "collectives", "waits")
    return wrapped(f"""# Recordings of other people

`python -m benchmarks.public_recordings` counts times again from raw files, in overlapscope's windows, steps and
lead-ins: those of {windows:,} windows and steps, of each collective of each group ({rows}), and waits for the last
rank where all ranks recorded a collective as often ({waits}). {different or "None"} of them
differ{"s" * (different == 1)} by a nanosecond or more.

{table(head, lines, words=1)}

[The other {len(jobs) - len(lines)} jobs, and sources](public-recordings.csv): one rank each. In {len(ascend)}
recordings of Ascend NPUs, compute and communication are within {max(map(max, ascend))} ns of msprof's own sums.

Reports were also read as their owners would; the changelog has the defects found. No public recording of Megatron-LM
was found.
""")


def main() -> None:
    """Write the page and its file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    jobs = tomllib.loads(SOURCES.read_text())
    counts = {
        name: counted(sorted((options.jobs / name).iterdir()), of_one_job=job.get("of", "one job") == "one job")
        for name, job in jobs.items()
    }
    ascend = [msprof_differences(path) for path in sorted((options.jobs / "ascend").iterdir())]
    options.page.write_text(page(jobs, counts, ascend).rstrip() + "\n")
    lines = [
        (name, jobs[name]["repository"], jobs[name]["files"], str(each.windows), str(len(each.different)))
        for name, each in counts.items()
    ]
    head = ("job", "repository", "files", "windows", "different")
    options.page.with_suffix(".csv").write_text(csv_text(head, lines))


if __name__ == "__main__":
    main()
