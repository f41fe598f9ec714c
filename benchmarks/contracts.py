"""Write `docs/evaluation/contracts.md`: which losses a contract catches, and how often it is wrong.

    python -m benchmarks.contracts OUT docs/evaluation/contracts.md      # OUT of benchmarks.contract_mutations

The first recording of each program writes its contract and its baseline. All others are judged by the contract, by the
default budgets with the baseline, and by those without.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks import contract_programs
from benchmarks.contract_programs import PROGRAMS, Expected
from benchmarks.data_files import csv_text
from benchmarks.noise import table, wrapped
from overlapscope.budgets import baseline as baselines
from overlapscope.budgets.baseline import Baseline
from overlapscope.budgets.check import check
from overlapscope.contracts.compare import Promise, compare
from overlapscope.contracts.file import from_toml, to_toml
from overlapscope.contracts.model import Contract
from overlapscope.contracts.observe import observe
from overlapscope.inputs import read_report
from overlapscope.reading import load

KINDS = {"alone": "alone", "busy": "beside busy processes", "scaled": "other batch sizes"}


class MutationRecording(Struct, frozen=True):
    """An entry of `index.json`."""

    program: str
    file: str
    mutation: str
    scale: float
    kind: str

    @property
    def group(self) -> str:
        """Key of `KINDS`."""
        return "scaled" if self.scale != 1 else self.kind


class JudgedRecording(Struct, frozen=True):
    """A recording as contract and budgets judge it."""

    recording: MutationRecording
    losses: tuple[Promise, ...]
    unknown: tuple[Promise, ...]
    by_baseline: tuple[str, ...]
    """Names of the default budgets on a change that failed."""
    by_default: tuple[str, ...]
    """Names of the default budgets without a baseline that failed, among those that the program itself passes."""
    seconds: float
    """Time of the comparison with the contract, reading included."""
    megabytes: float
    """Size of the trace, unpacked."""


def unpack(out: Path, folder: Path) -> list[MutationRecording]:
    """Unpack all recordings, and return them in the order in which they were made."""
    for archive in sorted(out.glob("contracts-*.tar")):
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    index = json.loads((out / "index.json").read_text())
    recordings = [msgspec.convert(entry, MutationRecording, strict=False) for entry in index["recordings"]]
    return [each for each in recordings if (folder / each.file).exists()]


def judge_all(folder: Path, recordings: Sequence[MutationRecording]) -> Iterator[JudgedRecording]:
    """Judge every recording but the first of each program, which writes contract and baseline."""
    for program in PROGRAMS:
        mine = [each for each in recordings if each.program == program]
        base = next((each for each in mine if each.kind == "base"), None)
        if base is None:
            continue
        contract = from_toml(to_toml(observe(load(folder / base.file, cache=False, progress=False))), base.file)
        report = read_report([folder / base.file], cache=False)
        usual = {verdict.budget for verdict in check(report).verdicts if verdict.status != "pass"}
        for recording in mine:
            if recording is not base:
                yield judge(folder / recording.file, recording, contract, baselines.of(report), usual)


def judge(
    path: Path, recording: MutationRecording, contract: Contract, baseline: Baseline, usual: set[str]
) -> JudgedRecording:
    """Judge one recording. `usual` has the default budgets that the program itself fails."""
    plain = path.with_suffix("")
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    begun = time.perf_counter()
    promises = compare(contract, observe(load(plain, cache=False, progress=False)))
    seconds = time.perf_counter() - begun
    report = read_report([path], cache=False)
    verdicts = check(report, baseline=baseline).verdicts
    default = {verdict.budget for verdict in check(report).verdicts if verdict.status == "fail"}
    judged = JudgedRecording(
        recording=recording,
        losses=tuple(each for each in promises if each.result == "lost"),
        unknown=tuple(each for each in promises if each.result == "unknown"),
        by_baseline=tuple(verdict.budget for verdict in verdicts if verdict.status == "fail"),
        by_default=tuple(sorted(default - usual)),
        seconds=seconds,
        megabytes=plain.stat().st_size / 1e6,
    )
    plain.unlink()
    return judged


# -- Right reason, right line -------------------------------------------------------------------------


def lines_of(program: str, mark: str) -> set[int]:
    """Return the lines that Kineto states for those of a program that end in a comment: where their functions begin."""
    source = Path(contract_programs.__file__).read_text()
    marked = {number for number, line in enumerate(source.splitlines(), 1) if line.endswith(f"  # {mark}")}
    [whole] = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == program]
    functions = [node for node in ast.walk(whole) if isinstance(node, ast.FunctionDef)]
    around = [[node for node in functions if node.lineno <= number <= (node.end_lineno or 0)] for number in marked]
    return {max(node.lineno for node in nodes) for nodes in around if nodes}


def right(program: str, expected: Expected, mutation: str, losses: Iterable[Promise]) -> bool:
    """Return whether one of the losses has the expected part, reason and line."""
    marks = expected.marks or (mutation,)
    wanted = set().union(*(lines_of(program, mark) for mark in marks))
    for loss in losses:
        named = {int(number) for number in re.findall(r"contract_programs\.py:(\d+)", f"{loss.message} {loss.line}")}
        if loss.part in expected.parts and re.search(expected.reason, loss.message) and ("" in marks or wanted & named):
            return True
    return False


# -- The page -----------------------------------------------------------------------------------------


def command_seconds(folder: Path, judged: Sequence[JudgedRecording]) -> tuple[float, float]:
    """Return the size in MB of the recording that is nearest to 1 MB, and the processor time to check it."""
    nearest = min(judged, key=lambda each: abs(each.megabytes - 1))
    path, file = folder / nearest.recording.file, folder / "c.toml"
    file.write_text(to_toml(observe(load(path, cache=False, progress=False))))
    command = [sys.executable, "-m", "overlapscope", "check", "--no-cache", "--contract", str(file), str(path)]
    seconds = []
    for _ in range(5):
        before = os.times()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))
    return nearest.megabytes, min(seconds)


def page(judged: Sequence[JudgedRecording], machine: dict[str, str], command: tuple[float, float]) -> str:
    """Return the page. `command` is what `command_seconds` returns."""
    mutations = [each for each in judged if each.recording.kind == "mutation"]
    repeats = [each for each in judged if each.recording.kind in KINDS]
    rate = statistics.median(each.seconds / each.megabytes for each in judged)
    head = wrapped(f"""# Overlap contracts

**Question:** Does a [contract](../guides/contracts.md) catch what makes copies wait, at the right place and with the
right reason, and is it silent about a program that did not change?

{len(PROGRAMS)} small programs were recorded on one {machine["gpu"]} (torch {machine["torch"]}) with Python stacks: once
to write the contract, once with each of {len(mutations)} mutations, and {len(repeats)} times more as they are.
`benchmarks/contract_programs.py` has the programs, and states which place each mutation must name, and why. (A stack of
Kineto states the first line of each function, not the line of the call.) The same recordings were judged by time, too:
by the default budgets with a baseline of the first recording, and without.""")
    foot = wrapped(f"""Reading and judging take {1000 * rate:.0f} ms for each MB of trace (median). `overlapscope check`
of {command[0]:.1f} MB takes {command[1]:.2f} s of processor time, with Python's start. [All
verdicts](contracts.csv).""")
    limits = wrapped("""Three recordings with other batch sizes raised an alarm at first, because the library split its
products otherwise. Since then all kernels of an `aten::` op count as a single kernel. These recordings were known by
then, so they don't prove it. A budget's alarm about another batch size is right about the time.""")
    parts = [head.strip(), summary(mutations, repeats), limits.strip(), foot.strip()]
    if wrong := list(of_programs(mutations, repeats)):
        heads = ("program", "missed or wrong", "mutations caught", "false alarms")
        parts += ["## Missed or wrong", table(heads, wrong, words=2)]
    return "\n\n".join(parts) + "\n"


def summary(mutations: Sequence[JudgedRecording], repeats: Sequence[JudgedRecording]) -> str:
    """Return the table of mutations caught and false alarms, by contract and by budgets."""
    ways: tuple[Callable[[JudgedRecording], bool], ...] = (by_contract, by_baseline, by_default)
    rows = [(f"mutations caught, of {len(mutations)}", *(str(sum(map(way, mutations))) for way in ways))]
    rows.append(("at the right place, with the right reason", str(sum(map(is_right, mutations))), "", ""))
    rows.append((f"false alarms, of {len(repeats)}", *(str(sum(map(way, repeats))) for way in ways)))
    for kind, words in KINDS.items():
        some = [each for each in repeats if each.recording.group == kind]
        rows.append((f"... {words}, of {len(some)}", *(str(sum(map(way, some))) for way in ways)))
    return table(("", "contract", "budgets with a baseline", "budgets without"), rows, words=1)


def of_programs(mutations: Sequence[JudgedRecording], repeats: Sequence[JudgedRecording]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each program whose contract missed a mutation or raised a false alarm."""
    for program in PROGRAMS:
        mine = [each for each in mutations if each.recording.program == program]
        again = [each for each in repeats if each.recording.program == program]
        missed, alarms = [each for each in mine if not is_right(each)], sum(map(by_contract, again))
        if missed or alarms:
            yield (
                program,
                ", ".join(each.recording.mutation for each in missed),
                f"{sum(map(by_contract, mine))} of {len(mine)}",
                f"{alarms} of {len(again)}",
            )


def by_contract(judged: JudgedRecording) -> bool:
    """Return whether the contract doesn't pass."""
    return bool(judged.losses or judged.unknown)


def by_baseline(judged: JudgedRecording) -> bool:
    """Return whether a budget fails that compares with the baseline."""
    return bool(judged.by_baseline)


def by_default(judged: JudgedRecording) -> bool:
    """Return whether a budget without a baseline fails."""
    return bool(judged.by_default)


def is_right(judged: JudgedRecording) -> bool:
    """Return whether a mutation was caught with line and reason."""
    expected = PROGRAMS[judged.recording.program][1][judged.recording.mutation]
    return right(judged.recording.program, expected, judged.recording.mutation, judged.losses)


def data(judged: Sequence[JudgedRecording]) -> str:
    """Return the verdicts on all recordings as CSV."""
    rows = [
        (
            each.recording.program,
            each.recording.mutation or each.recording.group,
            f"{each.recording.scale:g}",
            str(len(each.losses)),
            str(is_right(each)) if each.recording.mutation else "",
            " | ".join(promise.message for promise in (*each.losses, *each.unknown)),
            " | ".join(each.by_baseline),
            " | ".join(each.by_default),
        )
        for each in judged
    ]
    head = ("program", "recording", "batch", "losses", "right", "messages", "budgets with baseline", "budgets without")
    return csv_text(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("page", type=Path, metavar="PAGE")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        judged = list(judge_all(folder, unpack(options.out, folder)))
        command = command_seconds(folder, judged)
    finally:
        shutil.rmtree(folder)
    machine = json.loads((options.out / "index.json").read_text())["machine"]
    options.page.write_text(page(judged, machine, command))
    options.page.with_suffix(".csv").write_text(data(judged))
    for each in judged:
        mutation = each.recording.kind == "mutation"
        if (mutation and not is_right(each)) or (not mutation and (each.losses or each.unknown)):
            print(each.recording.program, each.recording.mutation, each.recording.group, each.recording.file)
            for promise in (*each.losses, *each.unknown):
                print("   ", promise.part, promise.message, promise.line)


if __name__ == "__main__":
    main()
