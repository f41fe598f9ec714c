"""Write `docs/evaluation/contracts.md`: which losses a contract catches, and how often it is wrong.

    python -m benchmarks.contracts OUT... docs/evaluation/contracts.md      # each OUT of benchmarks.contract_mutations

The first recording of each program on each GPU writes its contract and its baseline. All others of that GPU are judged
by the contract, by the default budgets with the baseline, and by those without; those of other GPUs by the contract.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.contract_programs import ALL_PROGRAMS, COMPILED, RANK_PROGRAMS, place_of
from benchmarks.contract_variants import Expected
from benchmarks.data_files import csv_text
from benchmarks.noise import table, wrapped
from overlapscope.budgets import baseline as baselines
from overlapscope.budgets.baseline import Baseline
from overlapscope.budgets.check import check
from overlapscope.contracts.compare import Promise, compare
from overlapscope.contracts.model import Contract, from_toml, to_toml
from overlapscope.contracts.observe import observe
from overlapscope.errors import UsageError
from overlapscope.inputs import read_report
from overlapscope.reading import load
from tests.core.contracts.test_contract_pairs import LOSSES
from tests.support.helpers import TRACES

KINDS = {"alone": "alone", "busy": "beside busy processes", "scaled": "other batch sizes"}


class MutationRecording(Struct, frozen=True):
    """An entry of `index.json`."""

    program: str
    file: str
    mutation: str
    scale: float
    kind: str
    gpu: str = ""
    """Name of the GPU, from the index's `machine`."""
    path: Path = Path()
    """Unpacked trace."""

    @property
    def group(self) -> str:
        """Key of `KINDS`."""
        return "scaled" if self.scale != 1 else "alone" if self.kind == "base" else self.kind


class JudgedRecording(Struct, frozen=True):
    """A recording as a contract and budgets judge it."""

    recording: MutationRecording
    written_on: str
    """GPU on which the contract was written."""
    losses: tuple[Promise, ...]
    unknown: tuple[Promise, ...]
    unstated: tuple[str, ...] = ()
    """Kinds of copies and collectives of whose overlap nothing is certain, one for each group of them."""
    by_baseline: tuple[str, ...] | None = None
    """Names of the default budgets on a change that failed; None without a baseline of the same GPU."""
    by_default: tuple[str, ...] = ()
    """Names of the default budgets without a baseline that failed, among those that the program itself passes."""
    seconds: float = 0.0
    """Time of the comparison with the contract, reading included."""
    megabytes: float = 0.0
    """Size of the trace, unpacked."""

    @property
    def own(self) -> bool:
        """True if the contract was written on the GPU of the recording."""
        return self.written_on == self.recording.gpu


class WrittenContract(Struct, frozen=True):
    """Contract and baseline of a program on a GPU."""

    base: MutationRecording
    contract: Contract
    baseline: Baseline | None
    """None if the recording can't be one."""
    usual: frozenset[str]
    """Default budgets that the program itself fails."""


def machine_of(out: Path) -> dict[str, str]:
    """Return the machine of a folder of recordings."""
    machine: dict[str, str] = json.loads((out / "index.json").read_text())["machine"]
    return machine


def unpack(out: Path, folder: Path) -> list[MutationRecording]:
    """Unpack all recordings, and return them in the order in which they were made."""
    for archive in sorted(out.glob("contracts-*.tar")):
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    gpu, index = machine_of(out)["gpu"], json.loads((out / "index.json").read_text())
    entries = ({**entry, "gpu": gpu, "path": folder / entry["file"]} for entry in index["recordings"])
    recordings = [MutationRecording(**entry) for entry in entries]
    return [each for each in recordings if each.path.exists()]


def judge_all(recordings: Sequence[MutationRecording]) -> Iterator[JudgedRecording]:
    """Judge every recording except those that write a contract; these only by the contracts of other GPUs."""
    for program in ALL_PROGRAMS:
        mine = [each for each in recordings if each.program == program]
        contracts: dict[str, WrittenContract] = {}
        for each in mine:
            if each.kind == "base" and each.gpu not in contracts:
                contracts[each.gpu] = write(each)
        for recording in mine:
            yield from judge(recording, contracts)


def write(base: MutationRecording) -> WrittenContract:
    """Return contract and baseline of a recording."""
    contract = from_toml(to_toml(observe(load(base.path, cache=False, progress=False))), base.file)
    report = read_report([base.path], cache=False)
    usual = frozenset(verdict.budget for verdict in check(report).verdicts if verdict.status != "pass")
    try:
        baseline = baselines.of(report)
    except UsageError:
        baseline = None
    return WrittenContract(base=base, contract=contract, baseline=baseline, usual=usual)


def judge(recording: MutationRecording, contracts: Mapping[str, WrittenContract]) -> Iterator[JudgedRecording]:
    """Judge a recording by the contract of each GPU."""
    path, plain = recording.path, recording.path.with_suffix("")
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    megabytes = plain.stat().st_size / 1e6
    begun = time.perf_counter()
    now = observe(load(plain, cache=False, progress=False))
    read_s = time.perf_counter() - begun
    plain.unlink()
    for gpu, written in contracts.items():
        if written.base is recording:
            continue
        begun = time.perf_counter()
        promises = compare(written.contract, now)
        judged = JudgedRecording(
            recording=recording,
            written_on=gpu,
            losses=tuple(each for each in promises if each.result == "lost"),
            unknown=tuple(each for each in promises if each.result == "unknown"),
            unstated=tuple(group.kind for group in written.contract.transfers if group.not_promised),
            seconds=read_s + time.perf_counter() - begun,
            megabytes=megabytes,
        )
        yield with_budgets(judged, written) if judged.own else judged


def with_budgets(judged: JudgedRecording, written: WrittenContract) -> JudgedRecording:
    """Return a judged recording with the verdicts of budgets."""
    report = read_report([judged.recording.path], cache=False)
    default = {verdict.budget for verdict in check(report).verdicts if verdict.status == "fail"}
    judged = replace(judged, by_default=tuple(sorted(default - written.usual)))
    if written.baseline is None:
        return judged
    verdicts = check(report, baseline=written.baseline).verdicts
    return replace(judged, by_baseline=tuple(verdict.budget for verdict in verdicts if verdict.status == "fail"))


# -- Right reason, right line -------------------------------------------------------------------------


def right(program: str, expected: Expected, mutation: str, losses: Iterable[Promise]) -> bool:
    """Return whether one of the losses has the expected part, reason and line."""
    marks = expected.marks or (mutation,)
    wanted = {f"{file}:{line}" for file, lines in (place_of(program, mark) for mark in marks) for line in lines}
    for loss in losses:
        named = set(re.findall(r"\w+\.py:\d+", f"{loss.message} {loss.line}"))
        if loss.part in expected.parts and re.search(expected.reason, loss.message) and ("" in marks or wanted & named):
            return True
    return False


# -- The page -----------------------------------------------------------------------------------------


def command_seconds(judged: Sequence[JudgedRecording]) -> tuple[float, float]:
    """Return the size in MB of the recording that is nearest to 1 MB, and the processor time to check it."""
    nearest = min(judged, key=lambda each: abs(each.megabytes - 1))
    path = nearest.recording.path
    file = path.with_suffix(".toml")
    file.write_text(to_toml(observe(load(path, cache=False, progress=False))))
    command = [sys.executable, "-m", "overlapscope", "check", "--no-cache", "--contract", str(file), str(path)]
    seconds = []
    for _ in range(5):
        before = os.times()
        ended = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        if ended.returncode not in (0, 1, 3):  # 1: a default rule finds something. 3: something is unknown.
            raise subprocess.CalledProcessError(ended.returncode, command)
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))
    return nearest.megabytes, min(seconds)


def page(judged: Sequence[JudgedRecording], machines: Sequence[dict[str, str]], command: tuple[float, float]) -> str:
    """Return the page. `command` is what `command_seconds` returns."""
    own = [each for each in judged if each.own]
    mutations = {(each.recording.program, each.recording.mutation) for each in own if each.recording.mutation}
    programs = {each.recording.program for each in own}
    mutated = sum(bool(each.recording.mutation) for each in own)
    repeats = len(own) - mutated
    gpus = " and ".join(dict.fromkeys(f"{machine['gpu']} (torch {machine['torch']})" for machine in machines))
    rate = statistics.median(each.seconds / each.megabytes for each in own)
    head = wrapped(f"""# Overlap contracts

**Question:** Does a [contract](../reference/contracts.md) catch what makes copies and collectives wait, at the right
place and with the right reason, and is it silent about a program that did not change?

{len(programs)} small programs were recorded on {gpus} with Python stacks: once to write the contract, with
{len(mutations)} mutations ({mutated} recordings), and {repeats} times more as they are.
{len(programs & set(COMPILED))} are compiled, {len(programs & set(RANK_PROGRAMS))} run on two GPUs.
`benchmarks/contract_programs.py` states which place each mutation must name, and why. The same recordings were judged
by time: by the default budgets with a baseline and without.""")
    foot = wrapped(f"""Reading and judging take {1000 * rate:.0f} ms for each MB of trace (median). `overlapscope check`
of {command[0]:.1f} MB takes {command[1]:.2f} s of processor time, with Python's start. [All
verdicts](contracts.csv).""")
    parts = [head.strip(), summary(judged), *unstated(own), foot.strip()]
    if wrong := list(of_programs(judged)):
        heads = ("program", "contract", "missed or wrong", "mutations caught", "false alarms")
        parts += ["## Missed or wrong", table(heads, wrong, words=3)]
    pairs = wrapped(f"""{len(LOSSES)} pairs of bundled recordings are of a program with overlap and without. By the
contract of the first, the second may not pass.""")
    heads = ("contract of", "recording", "verdict", "failed", "unknown")
    parts += ["## Bundled recordings", pairs.strip(), table(heads, list(of_bundled()), words=3)]
    parts += ["## Random programs", wrapped(_RANDOM).strip()]
    return "\n\n".join(parts) + "\n"


_RANDOM = """In pairs of random programs (streams, events, pinned and pageable copies, graphs, several GPUs), the second
has some of the first one's calls changed. What may overlap follows from all paths through the calls, found without
overlapscope. In 100,000 pairs from seed 5,000,000 on (2026-11-28), 50,533 lost something: 40,435 failed, 10,098 were
unknown, and none passed. Of 49,467 that kept everything, 43,386 passed, 6,080 were unknown, because a recording doesn't
state what a wait is for, and one failed: its recording doesn't state for which of two GPUs the host waits. `python -m
tests.fuzz.contracts --pairs 100000 --start 5000000` tries them again."""


def of_bundled() -> Iterator[tuple[str, ...]]:
    """Yield a row for each pair of bundled recordings of which the second has lost overlap."""
    for good, bad in LOSSES:
        contract, now = (observe(load(TRACES / f"{name}.json.gz", progress=False)) for name in (good, bad))
        results = [promise.result for promise in compare(contract, now)]
        lost, unknown = results.count("lost"), results.count("unknown")
        yield good, bad, "fails" if lost else "unknown" if unknown else "passes", str(lost), str(unknown)


def unstated(judged: Sequence[JudgedRecording]) -> Iterator[str]:
    """Yield a sentence on the copies and collectives of whose overlap nothing is certain, if there are any."""
    by_program = {each.recording.program: each.unstated for each in judged if each.unstated}
    if by_program:
        found = [f"{' and '.join(dict.fromkeys(kinds))} of `{program}`" for program, kinds in by_program.items()]
        yield wrapped(f"""Of the overlap of these, nothing is certain, so nothing is promised: {", ".join(found)}.
With CUDA 13, a recording doesn't state the event of a wait inside PyTorch.""").strip()


def summary(judged: Sequence[JudgedRecording]) -> str:
    """Return the table of mutations caught and false alarms, by contract and by budgets."""
    mutations = [each for each in judged if each.recording.mutation]
    repeats = [each for each in judged if not each.recording.mutation]
    rows = [
        ("mutations caught", *_cells(mutations)),
        ("at the right place, with the right reason", *_cells(mutations, only_right=True)),
        ("false alarms", *_cells(repeats)),
    ]
    parts = [(words, [each for each in repeats if each.recording.group == kind]) for kind, words in KINDS.items()]
    gpus = dict.fromkeys(each.recording.gpu for each in repeats)
    parts += [(gpu, [each for each in repeats if each.recording.gpu == gpu]) for gpu in gpus if len(gpus) > 1]
    subsets = {"compiled programs": COMPILED, "programs on two GPUs": tuple(RANK_PROGRAMS)}
    parts += [(words, [each for each in repeats if each.recording.program in some]) for words, some in subsets.items()]
    rows += [(f"... {words}", *_cells(some)) for words, some in parts if some]
    heads = ("", "contract", "contract of the other GPU", "budgets with a baseline", "budgets without")
    shown = [column for column, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    return table([heads[column] for column in shown], [[row[column] for column in shown] for row in rows], words=1)


def _cells(judged: Sequence[JudgedRecording], *, only_right: bool = False) -> Iterator[str]:
    """Yield the cells of a row: by the contract of each GPU, and by budgets, which state no reason."""
    own, others = ([each for each in judged if each.own is mine] for mine in (True, False))
    way = is_right if only_right else by_contract
    yield _cell(way, own)
    yield _cell(way, others)
    yield "" if only_right else _cell(by_baseline, [each for each in own if each.by_baseline is not None])
    yield "" if only_right else _cell(by_default, own)


def _cell(way: Callable[[JudgedRecording], bool], judged: Sequence[JudgedRecording]) -> str:
    return f"{sum(map(way, judged))} of {len(judged)}" if judged else ""


def of_programs(judged: Sequence[JudgedRecording]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each program whose contract missed a mutation or raised a false alarm."""
    for program, own in itertools.product(ALL_PROGRAMS, (True, False)):
        some = [each for each in judged if each.recording.program == program and each.own is own]
        mine = [each for each in some if each.recording.mutation]
        again = [each for each in some if not each.recording.mutation]
        missed, alarms = [each for each in mine if not is_right(each)], sum(map(by_contract, again))
        if missed or alarms:
            yield (
                program,
                "own" if own else "of the other GPU",
                ", ".join(dict.fromkeys(each.recording.mutation for each in missed)),
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
    expected = ALL_PROGRAMS[judged.recording.program][1][judged.recording.mutation]
    return right(judged.recording.program, expected, judged.recording.mutation, judged.losses)


def data(judged: Sequence[JudgedRecording]) -> str:
    """Return the verdicts on all recordings as CSV."""
    rows = [
        (
            each.recording.program,
            each.recording.mutation or each.recording.group,
            each.recording.gpu,
            each.written_on,
            f"{each.recording.scale:g}",
            str(len(each.losses)),
            str(is_right(each)) if each.recording.mutation else "",
            " | ".join(promise.message for promise in (*each.losses, *each.unknown)),
            " | ".join(each.by_baseline or ()),
            " | ".join(each.by_default),
        )
        for each in judged
    ]
    head = ("program", "recording", "gpu", "contract of", "batch", "losses", "right", "messages")
    return csv_text((*head, "budgets with baseline", "budgets without"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outs", type=Path, metavar="OUT", nargs="+")
    parser.add_argument("page", type=Path, metavar="PAGE")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        recordings = [each for number, out in enumerate(options.outs) for each in unpack(out, folder / str(number))]
        judged = list(judge_all(recordings))
        command = command_seconds([each for each in judged if each.own])
    finally:
        shutil.rmtree(folder)
    options.page.write_text(page(judged, [machine_of(out) for out in options.outs], command))
    options.page.with_suffix(".csv").write_text(data(judged))
    for each in judged:
        if not is_right(each) if each.recording.mutation else by_contract(each):
            recording = each.recording
            print(recording.program, recording.mutation, recording.group, recording.file)
            print(f"  {recording.gpu}, contract of {each.written_on}")
            for promise in (*each.losses, *each.unknown):
                print("   ", promise.part, promise.message, promise.line)


if __name__ == "__main__":
    main()
