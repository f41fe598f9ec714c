"""Write `docs/evaluation/public-recordings.md`: other people's recordings, counted again and judged by hand.

    python -m benchmarks.public_recordings RECORDINGS docs/evaluation/public-recordings.md

`RECORDINGS` has the files of `public_recordings.toml`, which this repository does not keep, under `OWNER+NAME/PATH`,
archives unpacked beside themselves. The figures are compared with those of `public_recordings_raw`. Each judgement in
the page's CSV file belongs to the words beside it: once these change, the cell becomes empty, to be judged again.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final, NamedTuple

import overlapscope
from benchmarks.data_files import csv_cells, csv_text
from benchmarks.noise import table, wrapped
from benchmarks.public_recordings_raw import PublicOp, ops_of, sweep, threads_of, waited
from overlapscope.analysis.figures import Period
from overlapscope.analysis.measured import Buckets
from overlapscope.analysis.results import Device, HostUse, host_parts
from overlapscope.commands import main as overlapscope_main
from overlapscope.errors import UnreadableTrace
from overlapscope.ranks.comm_result import GroupCollective
from overlapscope.ranks.join import report_on
from overlapscope.ranks.reduced import ReducedRank, reduce
from overlapscope.ranks.result import RankRow, RanksReport

SOURCES: Final = Path(__file__).with_suffix(".toml")


class Counts(NamedTuple):
    """Figures that were counted again, and those that differ."""

    ranks: int
    windows: int
    rows: int
    waits: int
    different: tuple[str, ...]


def counted(files: Sequence[Path]) -> Counts:
    """Count the figures of the recordings of a job again; a file that is refused has none."""
    try:
        job = JobComparison(files)
    except UnreadableTrace:
        return Counts(0, 0, 0, 0, ())
    return Counts(job.ranks, job.windows, job.rows, job.waits, tuple(job.different))


class JobComparison:
    """Comparison of a job's recordings."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.windows = self.rows = self.waits = self.ranks = 0
        self.different: list[str] = []
        self._ops = {str(path): ops_of(path) for path in files}
        self._devices: dict[tuple[str, int], Device] = {}
        joined: list[ReducedRank] = []
        for trace in overlapscope.analyze(files).traces:
            if trace.host is not None and not trace.source.endswith(".sqlite"):
                self._compare_host(_file(trace.source), trace.host)
            for device in trace.devices:
                self._devices[_file(trace.source), device.device] = device
                self._compare_windows(_file(trace.source), device)
            joined += reduce(overlapscope.load(trace.source)) if trace.devices else ()
        report = report_on(joined)
        self.ranks = sum(row.joined for row in report.ranks)
        if self.ranks > 1:
            self._compare_groups(report)

    def _compare_windows(self, file: str, device: Device) -> None:
        ops = self._ops[file][device.device]
        periods: list[tuple[str, Device | Period]] = [("window", device)]
        periods += [("judged", device.judged)] if device.judged is not None else []
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

    def _compare_host(self, file: str, host: HostUse) -> None:
        ops = threads_of(Path(file))[host.threads[0].thread]
        for step in host.steps:
            first = sweep(ops, step.window.start_ns, step.window.end_ns).first
            self.windows += 1
            parts = host_parts(step)
            rest_ns = parts["python"] + parts["communication"]
            if (first["loading"], first["ops"], first["idle"]) != (parts["data-loading"], parts["ops"], rest_ns):
                self.different.append(f"{file}, {step.name}")

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
            self._compare_waits(each, report, rows, ops, windows)

    def _compare_waits(
        self,
        each: GroupCollective,
        report: RanksReport,
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
        # The files' own times are compared, though the clocks may differ by the error of each arrival.
        error = (report.clocks.largest_error_ns or 0) * sum(map(len, of_ranks))
        if abs(waited(of_ranks, judged_from, windows) - each.time.waiting_ns) > error:
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


# -- What a report says ------------------------------------------------------------------------------------


class JudgedReport(NamedTuple):
    """Words of a report on a recording, and judgements on them by a reader of the recording."""

    verdict: str
    verdict_right: str = ""
    verdict_reason: str = ""
    finding: str = ""
    finding_right: str = ""
    finding_reason: str = ""


def judged(path: Path, before: JudgedReport) -> JudgedReport:
    """Return the words of today's report on a file, with the judgements of the same words before."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(printed):
        overlapscope_main(["analyze", str(path)])
    text = printed.getvalue().replace("\n    ", "\n")
    first = next((part for part in text.split("\n\n") if path.name in part and "step ms" not in part), text)
    said = " ".join(first.split()).partition(f"{path.name}")[2].lstrip(",: ")
    match = re.search(r"^ ?1\. (.*?)(?=^ ?\d+\. |^overlapscope |\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    # As in the CSV file, so that the words can be compared with those before.
    verdict, finding = csv_cells((said, " ".join(match[1].split()) if match else ""))
    return JudgedReport(
        verdict,
        *(before[1:3] if verdict == before.verdict else ("", "")),
        finding,
        *(before[4:] if finding == before.finding else ("", "")),
    )


# -- The page ----------------------------------------------------------------------------------------------


class PublicRecording(NamedTuple):
    """A recording, or those of the ranks of a job, with what a reader sees in the files."""

    repository: str
    path: str
    what: str
    expert: str

    def files(self, folder: Path) -> list[Path]:
        """Return its files, those of the ranks in the order of their names."""
        path = folder / self.repository.replace("/", "+") / self.path.removesuffix(".tar.gz")
        return sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


class CountedRecording(NamedTuple):
    """A row of the CSV file."""

    recording: PublicRecording
    counts: Counts
    judged: JudgedReport


HEAD: Final = (*PublicRecording._fields, "windows", "different", *JudgedReport._fields)


def page(rows: Sequence[CountedRecording], ascend: Sequence[Sequence[int]]) -> str:
    """Return the page with a row for each job, and a sentence on the differences of recordings of Ascend."""
    windows, collectives, waits = (sum(figures) for figures in zip(*((row.counts[1:4]) for row in rows), strict=True))
    different = sum(len(row.counts.different) for row in rows)
    jobs = [row for row in rows if row.counts.ranks > 1]
    lines = [(row.recording.what, *map(str, row.counts[1:4])) for row in jobs]
    head = ("job", "windows", "collectives", "waits")
    repositories = len({row.recording.repository for row in rows})
    verdicts = [row.judged.verdict_right for row in rows]
    findings = [row.judged.finding_right for row in rows if row.judged.finding]
    fine = [row.judged.verdict_right for row in rows if re.search("No overlap problems|Little to", row.judged.verdict)]
    unjudged = (verdicts + findings).count("")
    wrong = [
        (row.recording.repository, row.recording.what, part, reason)
        for row in rows
        for part, right, reason in (
            ("verdict", row.judged.verdict_right, row.judged.verdict_reason),
            ("first finding", row.judged.finding_right, row.judged.finding_reason),
        )
        if right == "no"
    ]
    return wrapped(f"""# Recordings of other people

`python -m benchmarks.public_recordings` counts times again from raw files, in overlapscope's windows, steps and
lead-ins: those of {windows:,} windows and steps of {len(rows)} recordings of {repositories} repositories, of each
collective of each group ({collectives}), and waits for the last rank where all ranks recorded a collective as often
({waits}). {different or "None"} of them differ{"s" * (different == 1)} by a nanosecond or more, or waits by
more than the error of arrivals.

Each file was also read by hand, and its report compared with what the file shows. A verdict is right if its main
cause, amounts and advice are right. A first finding is right if its cost is right and its advice fits the program.
**{verdicts.count("yes")} of {len(verdicts)} verdicts and {findings.count("yes")} of {len(findings)} first findings are
right**{f" ({unjudged} are not yet judged)" * bool(unjudged)}. {len(fine)} verdicts see little or nothing to gain:
{fine.count("yes")} of them are right. An estimated 38 of the first verdicts on these files were wrong. The report on a
job's first file is judged, not that of `overlapscope ranks`.

[Every recording](public-recordings.csv): what it shows, the words of its report, and the reason of each judgement.

## What is wrong

{table(("repository", "recording", "wrong", "reason"), wrong, words=4)}

## Jobs of several ranks

{table(head, lines, words=1)}

In {len(ascend)} recordings of Ascend NPUs, compute and communication are within {max(map(max, ascend))} ns of msprof's
own sums. No public recording of Megatron-LM was found.
""")


def main() -> None:
    """Write the page and its file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    with options.page.with_suffix(".csv").open(newline="") as file:
        before = {(row["repository"], row.get("path")): row for row in csv.DictReader(file)}
    rows, ascend = [], []
    for entry in tomllib.loads(SOURCES.read_text())["recordings"]:
        recording = PublicRecording(**entry)
        files = recording.files(options.recordings)
        if files[0].name == "trace_view.json":
            ascend.append(msprof_differences(files[0]))
            counts = Counts(1, 0, 0, 0, ())
        else:
            counts = counted(files)
        old = before.get(recording[:2], {})
        said = judged(files[0], JudgedReport(*(old.get(field, "") for field in JudgedReport._fields)))
        rows.append(CountedRecording(recording, counts, said))
    options.page.write_text(page(rows, ascend).rstrip() + "\n")
    lines = [(*row.recording, str(row.counts.windows), str(len(row.counts.different)), *row.judged) for row in rows]
    options.page.with_suffix(".csv").write_text(csv_text(HEAD, lines))


if __name__ == "__main__":
    main()
