"""Write `docs/evaluation/noise.md`: how much recordings of the same program differ, and which slowdowns are found.

    python -m benchmarks.noise docs/evaluation/noise.md      # two minutes

The recordings are those of `benchmarks.repeats`: `tests/repeats.tar.xz` holds two sets of them.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.data_files import csv_text
from benchmarks.noise_measured import (
    KINDS,
    LOWER,
    PROGRAMS,
    SETS,
    SETTINGS,
    PlantedSlowdown,
    Repeated,
    RepeatedRecording,
    clean,
    floor_ms,
    index,
    least_found,
    planted,
    read,
    repeated,
    told_apart,
    unpack,
)
from overlapscope.compare.noise import (
    CONFIDENCE,
    GPU_SHARE,
    HOST_SHARE,
    LINK_SHARE,
    MIN_NOISE_POINTS,
    SLOW_HOST,
    SLOW_LOADING,
)

By = Mapping[str, Sequence[RepeatedRecording]]
"""The recordings of each program."""

WIDTH = 120
WORDS = {
    "compute": "kernel",
    "copy": "copy",
    "host": "host work",
    "pageable": "no pinned memory",
    "default_stream": "copies on the default stream",
    "synchronize": "one more synchronize",
}
FLOORS = ("step_time", "compute_time", "exposed_copy_time", "idle_time")
TRIED = (("prefetch", "compute"), ("offload", "compute"), ("training", "compute"), ("training", "copy"))
"""Slowdowns that show the difference between settings."""
SLOW_DECODE = 1.5
"""Times the usual step of `decode`."""


def wrapped(text: str) -> str:
    """Paragraphs and lists with lines of even length; tables, headings and code as they are."""
    blocks = []
    for block in text.strip("\n").split("\n\n"):
        if block.startswith(("#", "|", " ")):
            blocks.append(block)
            continue
        for item in re.split(r"\n(?=- )", block):
            indent = "  " if item.startswith("- ") else ""
            filled = textwrap.fill(
                " ".join(item.split()), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
            # The items of a list stay together.
            if indent and blocks and item is not block and blocks[-1].startswith("- "):
                blocks[-1] += f"\n{filled}"
            else:
                blocks.append(filled)
    return "\n\n".join(blocks) + "\n\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int) -> str:
    """Return a table whose first columns are words and whose others are numbers."""
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])


# -- Quick parts ----------------------------------------------------------------------------------


def how(folder: Path) -> str:
    """Return the section on how the recordings were made."""
    first, second = (index(folder, name) for name in SETS)
    machine, are_clean = first["machine"], Counter(recording["kind"] == "clean" for recording in first["recordings"])
    return wrapped(f"""## The recordings

Four small programs (`benchmarks/repeats_programs.py`) on an {machine["gpu"]} (torch {machine["torch"]}, CUDA
{machine["cuda"]}, Python {machine["python"]}, {machine["cores"]} cores of a shared host):

- `prefetch` is bound by the GPU: matrix products, with the next batch copied meanwhile.
- `offload` is bound by the link: layers are copied in and out.
- `decode` is bound by the host: kernels are shorter than their launch.
- `training` reads its loss in every step, so the GPU waits for the host.

Each recording has a process of its own and {first["steps"]} steps. The first set has
{are_clean[True] // len(PROGRAMS)} recordings of each unchanged program, and {are_clean[False]} with a planted slowdown;
the second, made half an hour later after a restart of the machine, {len(second["recordings"]) // len(PROGRAMS)} more of
each unchanged program. `python -m benchmarks.repeats record` measures the noise of your machine.
""")


REPEAT = ("program", "first set, ms", "second set, ms", "longest above shortest", "pairs told apart")


def repeat_rows(recordings: By) -> list[list[str]]:
    """Return the median step of each clean recording, by program."""
    rows = []
    for program, mine in recordings.items():
        pairs = list(itertools.combinations(clean(mine), 2))
        apart = sum(told_apart(first, other) for first, other in pairs)
        steps = [recording.step_ms for recording in clean(mine)]
        sets = [", ".join(f"{recording.step_ms:.3f}" for recording in clean(mine, name)) for name in SETS]
        rows.append([program, *sets, f"{100 * (max(steps) / min(steps) - 1):.1f}%", f"{apart} of {len(pairs)}"])
    return rows


def repeats(recordings: By) -> str:
    """Return the section on how much the clean recordings differ."""
    rows = repeat_rows(recordings)
    apart, total = (sum(int(row[-1].split(" of ")[end]) for row in rows) for end in (0, 1))
    short = [[row[0], *row[3:]] for row in rows]
    return wrapped(f"""## Repeated recordings of one program

{table([REPEAT[0], *REPEAT[3:]], short, words=1)}

Told apart: the {100 * CONFIDENCE:.0f}% interval of the change over the steps excludes zero, although the program is the
same. This holds for **{apart} of {total}** pairs ({100 * apart / total:.0f}%), because steps within a recording are
alike.

{_outliers(recordings)}
""")


def _outliers(recordings: By) -> str:
    links, hosts = clean(recordings["offload"]), clean(recordings["decode"])
    rates = [link.median("copy_bandwidth", "h2d") for link in links]
    slowest = sorted(range(len(links)), key=rates.__getitem__)[:2]
    named = " and ".join(f"{rates[number]:.1f} GB/s ({_name(links[number])})" for number in slowest)
    usual_ms = statistics.median(host.step_ms for host in hosts)
    slow = max(hosts, key=lambda item: item.step_ms)
    others = [item for item in recordings["decode"] if item.kind != "clean"]
    too = sum(other.step_ms > SLOW_DECODE * usual_ms for other in others)
    return f"""- **offload**: in two recordings the link was slower, with {named} from host to device instead of
  {statistics.median(rates):.1f}.
- **decode**: in {_name(slow)} the host was half as fast and worked for {slow.host_ms:.2f} ms of each step instead of
  {statistics.median(host.host_ms for host in hosts):.2f}; so it was in {too} of the {len(others)} recordings with a
  planted slowdown."""


def _name(recording: RepeatedRecording) -> str:
    return f"number {recording.number} of the {recording.set_name} set"


def floors(recordings: By) -> str:
    """Return the section on the noise floors."""
    rows = []
    for program, mine in recordings.items():
        first = clean(mine, "first")
        step_ms = statistics.median(item.step_ms for item in first)
        rows.append([program, f"{step_ms:.3f}", *(f"{floor_ms(first, metric):.3f}" for metric in FLOORS)])
    return wrapped(f"""## Noise floor

`overlapscope diff` and `overlapscope check --baseline` report a change only if it exceeds the noise floor
(`overlapscope/compare/noise.py`), the sum of three parts:

- GPU: {100 * GPU_SHARE:g}% of the step;
- link: {100 * LINK_SHARE:g}% of the copies and communication in the measured time;
- host: {HOST_SHARE:g} times the time that depends on the host: idle time by `host-sync`, `dispatch`,
  `python` and the like, and copies that were launched late. The host's work in a step takes at most as long as the
  step, so this is at most {SLOW_HOST:g} times the shorter step, and for `data-loading` {SLOW_LOADING:g} times.

Loading data varies less than launching. In ten processes each on an H200 (recordings not kept), the longest step was
1.3 times the shortest if the loader had no workers (106 to 135 ms; 1.2 times if it pinned batches), and 1.6 times if
four workers were too slow for the GPU (22.5 to 36.4 ms; 1.5 times).

Link and host count on the side that has less of them. A percentage must change by at least {MIN_NOISE_POINTS:g} \
point. Median
floors over the pairs of the first set, in ms:

{table(["program", "step", *FLOORS], rows, words=1)}

The shares were chosen with the first set. As a pair of the second failed, the host's share was raised from 1.5 to
{HOST_SHARE:.1f}, so the second set isn't fully held out.
""")


# -- Slow parts -----------------------------------------------------------------------------------


def alike(measured_programs: Sequence[Repeated]) -> str:
    """Return the section on false failures of check and diff."""
    pairs, failed = (
        _summed(match.pairs for match in measured_programs),
        _summed(match.failed["default"] for match in measured_programs),
    )
    steps, ranges = (_summed(getattr(match, name) for match in measured_programs) for name in ("in_steps", "in_ranges"))
    diffs = sum(match.diffs for match in measured_programs)
    return wrapped(f"""## False failures

At default settings, over both sets:

- `check --baseline` fails **{sum(failed)} of {sum(pairs)}** ordered pairs of recordings of the same program.
- `diff` reports **{steps[0]} of {steps[1]:,}** figures of steps as beyond noise, in {diffs} pairs, and {ranges[0]} of
  {ranges[1]:,} figures of ranges. When the host launches a copy decides how much of it is in a short range, such as an
  optimizer's step.
""")


def _summed(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    first, second = zip(*counts, strict=True)
    return sum(first), sum(second)


def least_sizes(rows: Sequence[PlantedSlowdown]) -> list[list[str]]:
    """Return, for each kind and program, the smallest planted slowdown that default settings always find."""
    lines = []
    for kind in KINDS:
        cells = []
        for program in PROGRAMS:
            mine = [row for row in rows if (row.program, row.kind) == (program, kind) and row.asked_pct]
            cells.append(_size(least_found(mine, "default")) if mine else "not planted")
        if set(cells) != {"not planted"}:
            lines.append([WORDS[kind], *cells])
    return lines


def _size(row: PlantedSlowdown | None) -> str:
    return "none" if row is None else f"{row.planted_ms:.3f} ms ({row.planted_pct:.1f}%)"


def slowdowns(rows: Sequence[PlantedSlowdown], recordings: By) -> str:
    """Return the section on planted slowdowns, found and missed."""

    def row(program: str, kind: str, pct: float | None = None) -> PlantedSlowdown:
        (match,) = (r for r in rows if (r.program, r.kind, r.asked_pct) == (program, kind, pct))
        return match

    def floor(program: str, metric: str) -> str:
        return f"{floor_ms(clean(recordings[program], 'first'), metric):.2f} ms"

    waiting, busy = row("prefetch", "copy", 1.0), row("decode", "host", 5.0)
    uploaded, sent = row("offload", "copy", 5.0), row("training", "copy", 5.0)
    again = max(row(name, "synchronize").grown_pct for name in ("decode", "training"))
    (comparisons,) = {row.comparisons for row in rows}
    return wrapped(f"""## Planted slowdowns

A kernel, a copy or a busy loop on the host was added to each step where nothing else runs, for 0.5 to 10% of the step.
The smallest that made the default check fail in all {comparisons} comparisons with the unchanged program:

{table(["planted", *PROGRAMS], least_sizes(rows), words=1)}

Always found and named: batches in pageable memory (`pageable-memory`), copies on the default stream (`same-stream`),
and a synchronize in a program that had none (`host-sync`). A copy in `prefetch` costs more than its length, because it
waits for the batch's copy: the step with {waiting.planted_pct:.1f}% planted is {waiting.grown_pct:.0f}% longer. Data:
[every slowdown](noise.csv), [every recording](noise-recordings.csv).

### What is not found

- **Host work where the host is the bottleneck.** A step of `decode` may vary by {floor("decode", "step_time")}, so
  {busy.planted_ms:.3f} ms more go unnoticed. `step_time` and `idle_time` notice only a host that takes several times as
  long.
- **Copies where copies are exposed anyway.** {uploaded.planted_ms:.3f} ms in `offload` are below the noise floor of
  `exposed_copy_time`, {floor("offload", "exposed_copy_time")}; {sent.planted_ms:.3f} ms in `training` are below
  {floor("training", "exposed_copy_time")}.
- **A synchronize where the program waits anyway**: it changes steps of `decode` and `training`, which read a result in
  each step, by {again:.0f}% at most.
- **Kernels below 3% of the compute**, the allowed increase of `compute_time`, or below {100 * GPU_SHARE:g}% of the
  step. `diff` names every new kernel.
""")


def stricter(measured_programs: Sequence[Repeated], rows: Sequence[PlantedSlowdown]) -> str:
    """Return the section on stricter settings and their price."""
    whole, lines = _summed(match.pairs for match in measured_programs), []
    for name in SETTINGS:
        wrong = _summed(match.failed[name] for match in measured_programs)
        cells = [f"{bad} of {pairs}" for bad, pairs in zip(wrong, whole, strict=True)]
        tried = [[row for row in rows if (row.program, row.kind) == option] for option in TRIED]
        lines.append([name, *cells, *(_size(least_found(mine, name)) for mine in tried)])
    head = ["settings", "pairs of one set", "of two sets", *(f"{program}, {WORDS[kind]}" for program, kind in TRIED)]
    return wrapped(f"""## Stricter settings

Lower the percentages in `overlapscope.toml`, and keep the noise floors:

{textwrap.indent(LOWER, "    ")}
On a machine of your own, a fixed `noise_floor = "1%"` (of the step) in each default budget finds more; elsewhere it
raises false alarms. False alarms, and the smallest slowdown that is always found:

{table(head, lines, words=1)}

`python -m benchmarks.noise docs/evaluation/noise.md` writes this page from `tests/repeats.tar.xz`. A test fails when
the quick parts are stale.
""")


def everything(rows: Sequence[PlantedSlowdown]) -> list[list[str]]:
    """Each slowdown that was planted, and what became of it."""
    lines = []
    for row in rows:
        failed = row.failed["default"]
        lines.append(
            [
                row.program,
                WORDS[row.kind],
                ", ".join(name if n == failed else f"{name} ({n})" for name, n in row.budgets.items()),
                ", ".join(row.others_beyond_noise),
                "" if row.asked_pct is None else f"{row.asked_pct:g}%",
                "" if row.planted_ms is None else f"{row.planted_ms:.3f} ms ({row.planted_pct:.1f}%)",
                f"{row.grown_pct:+.1f}%",
                f"{failed} of {row.comparisons}",
                f"{row.step_beyond_noise} of {row.comparisons}",
            ]
        )
    return lines


PLANTED = (
    *("program", "planted", "budgets that fail", "beyond noise in every diff", "asked", "measured", "mean step"),
    *("check fails", "step beyond noise in a diff"),
)
"""Head of `everything`. A number in brackets counts failures of a budget where the check fails more often."""


def opening(measured_programs: Sequence[Repeated], rows: Sequence[PlantedSlowdown]) -> str:
    """Return the page's title and summary."""
    pairs, failed = (
        _summed(match.pairs for match in measured_programs),
        _summed(match.failed["default"] for match in measured_programs),
    )
    kernels = [
        least_found([row for row in rows if (row.program, row.kind) == (name, "compute")], "default")
        for name in PROGRAMS
    ]
    sizes = sorted(kernel.asked_pct for kernel in kernels if kernel is not None and kernel.asked_pct is not None)
    return wrapped(f"""# Noise between recordings

**Question:** Does `check` fail for no reason, and which slowdowns does it find?

At default settings {sum(failed)} of {sum(pairs)} pairs of recordings of the same program fail. A kernel of
{sizes[0]:g} to {sizes[-1]:g}% of a step, depending on the program, is always found, and so are pageable memory and
copies on the default stream. Small slowdowns of the host are not found, because
the host itself may be half as fast from one recording to the next.
""")


def page(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the page and the CSV files beside it, by what their names end with, from an unpacked archive."""
    recordings = read(folder)
    with ProcessPoolExecutor() as pool:
        slow = pool.map(repeated, recordings.values()), pool.map(planted, recordings.values())
        measured_programs, rows = list(slow[0]), list(itertools.chain.from_iterable(slow[1]))
    text = "".join(
        [
            opening(measured_programs, rows),
            how(folder),
            repeats(recordings),
            floors(recordings),
            alike(measured_programs),
            slowdowns(rows, recordings),
            stricter(measured_programs, rows),
        ]
    )
    data = {"": csv_text(PLANTED, everything(rows)), "-recordings": csv_text(REPEAT, repeat_rows(recordings))}
    return text.rstrip() + "\n", data


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, metavar="FILE", help="where to write it: docs/evaluation/noise.md")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        unpack(Path(name))
        text, data = page(Path(name))
    options.page.write_text(text)
    for ending, rows in data.items():
        options.page.with_name(f"{options.page.stem}{ending}.csv").write_text(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
