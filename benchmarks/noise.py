"""Writes `docs/evaluation/noise.md`: how much recordings of one program differ, and which slowdowns are found anyway.

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

from benchmarks.noise_measured import (
    FIXED,
    KINDS,
    LOWER,
    PROGRAMS,
    SETS,
    SETTINGS,
    Planted,
    Recording,
    Repeated,
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
from overlapscope.compare.noise import CONFIDENCE, GPU_SHARE, HOST_SHARE, LINK_SHARE, POINTS

By = Mapping[str, Sequence[Recording]]
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
"""What shows how settings differ."""
SLOW_HOST = 1.5
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
    """A table, of whose columns the first ones are words and the others numbers."""
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])


# -- the parts that are quick to make -----------------------------------------------------------------


def how(folder: Path) -> str:
    """How the recordings were made."""
    first, second = (index(folder, name) for name in SETS)
    machine, are_clean = first["machine"], Counter(one["kind"] == "clean" for one in first["recordings"])
    return wrapped(f"""## The recordings

Four small programs (`benchmarks/repeats_programs.py`), recorded by `benchmarks/repeats.py` on an {machine["gpu"]}
(torch {machine["torch"]}, CUDA {machine["cuda"]}, Python {machine["python"]}, {machine["cores"]} cores of a host that
others use, too):

- `prefetch`: matrix products, the next batch copied beside them. The GPU bounds it.
- `offload`: layers are copied in, computed on for a moment, and copied out. The link to the host bounds it.
- `decode`: one token after the other, kernels shorter than their launch. The host bounds it.
- `training`: reads its loss in every step, so that the GPU waits for the host for a moment.

Each recording is made as CI makes it: a process of its own sets the program up, runs it warm and records
{first["steps"]} steps. The programs take turns. The first set has {are_clean[True] // len(PROGRAMS)} recordings of each
program as it is, and {are_clean[False]} with a slowdown planted. The second, made half an hour later after another
start of the machine, has {len(second["recordings"]) // len(PROGRAMS)} more of each program as it is.

**That is one model of GPU and one kind of machine.** Elsewhere the noise is another; `python -m benchmarks.repeats
record` measures yours.
""")


def repeats(recordings: By) -> str:
    """How much the clean recordings differ, and why their steps do not tell."""
    rows, apart, total = [], 0, 0
    for program, mine in recordings.items():
        pairs = list(itertools.combinations(clean(mine), 2))
        told = sum(told_apart(one, other) for one, other in pairs)
        apart, total = apart + told, total + len(pairs)
        steps = [one.step_ms for one in clean(mine)]
        sets = [", ".join(f"{one.step_ms:.3f}" for one in clean(mine, name)) for name in SETS]
        rows.append([program, *sets, f"{100 * (max(steps) / min(steps) - 1):.1f}%", f"{told} of {len(pairs)}"])
    head = ["program", "first set", "second set", "longest above shortest", "pairs told apart"]
    return wrapped(f"""## Repeated recordings of one program

The median step of each recording, in ms:

{table(head, rows, words=3)}

{_outliers(recordings)}

### Why one recording is not enough

Within one recording steps are alike, as clocks, link and host stay what they are while it lasts. So the
{100 * CONFIDENCE:.0f}% interval of the change, which knows nothing but these steps, is narrow: in **{apart} of
{total}** pairs ({100 * apart / total:.0f}%) it leaves out zero, though the program is the same ("pairs told apart").
More steps make it narrower still. It is needed, as some steps do scatter; alone it would call every other recording a
change.
""")


def _outliers(recordings: By) -> str:
    links, hosts = clean(recordings["offload"]), clean(recordings["decode"])
    rates = [one.median("copy_bandwidth", "h2d") for one in links]
    slowest = sorted(range(len(links)), key=rates.__getitem__)[:2]
    named = " and ".join(f"{rates[number]:.1f} GB/s ({_name(links[number])})" for number in slowest)
    usual_ms = statistics.median(one.step_ms for one in hosts)
    slow = max(hosts, key=lambda one: one.step_ms)
    others = [one for one in recordings["decode"] if one.kind != "clean"]
    too = sum(one.step_ms > SLOW_HOST * usual_ms for one in others)
    return f"""- **prefetch** waits for nobody: only the GPU itself is now a little faster, now a little slower.
- **offload**: the link was slower in two recordings: {named} from host to device, instead of
  {statistics.median(rates):.1f}.
- **decode**: one recording ({_name(slow)}) was made while the host was half as fast. It worked for itself for
  {slow.host_ms:.2f} ms of each step, instead of {statistics.median(one.host_ms for one in hosts):.2f}. That happened to
  {too} of the {len(others)} recordings with something planted, too.
- **training** waits for the host a little, and for longer in some recordings."""


def _name(one: Recording) -> str:
    return f"number {one.number} of the {one.set_name} set"


def floors(recordings: By) -> str:
    """The noise floors, and what they come to here."""
    rows = []
    for program, mine in recordings.items():
        first = clean(mine, "first")
        step_ms = statistics.median(one.step_ms for one in first)
        rows.append([program, f"{step_ms:.3f}", *(f"{floor_ms(first, metric):.3f}" for metric in FLOORS)])
    return wrapped(f"""## Noise floor

A change counts only where it is larger than the noise floor (`overlapscope/compare/noise.py`), which adds up:

- for the GPU {100 * GPU_SHARE:g}% of the step;
- for the link {100 * LINK_SHARE:g}% of the copies and communication in what is measured;
- for the host {HOST_SHARE:g} times the time in it that the host decides about: idle time by `host-sync`,
  `launch-bound`, `host-compute` and the like, copies that were launched late.

Link and host count on the side that has less of them. A percentage has to change by {POINTS:g} point at least. In ms,
the median over the pairs of the first set:

{table(["program", "step", *FLOORS], rows, words=1)}

These shares were set with the first set in view, and then tried on the second. One ordered pair failed, a recording of
`decode` in the first set against one in the second; so the host's share was raised from 1.5 to {HOST_SHARE:.1f}. The
second set is therefore not wholly held out.
""")


# -- the parts that take a while ----------------------------------------------------------------------


def alike(found: Sequence[Repeated]) -> str:
    """What check and diff say of the clean recordings."""
    pairs, failed = _summed(one.pairs for one in found), _summed(one.failed["default"] for one in found)
    steps, ranges = (_summed(getattr(one, name) for one in found) for name in ("in_steps", "in_ranges"))
    why = "how much of a copy falls into so short a range as an optimizer's step depends on when the host launches it"
    return wrapped(f"""## False failures

At default settings, over both sets together:

- `check --baseline` fails **{sum(failed)} of {sum(pairs)}** ordered pairs of recordings of one program.
- `diff`, of {sum(one.diffs for one in found)} pairs, calls **{steps[0]} of {steps[1]:,}** figures of steps beyond
  noise, and {ranges[0]} of the {ranges[1]:,} of ranges{f": {why}" if ranges[0] else ""}.
  Findings whose cost is about what a rule lets pass come and go; it says that they are no more than
  noise.
""")


def _summed(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    one, other = zip(*counts, strict=True)
    return sum(one), sum(other)


def found_sizes(rows: Sequence[Planted]) -> list[list[str]]:
    """In how many comparisons each size of what was planted is found at default settings."""
    sizes = _sizes(rows)
    lines = []
    for program, kind in itertools.product(PROGRAMS, KINDS):
        mine = {row.asked_pct: row for row in rows if (row.program, row.kind) == (program, kind) and row.asked_pct}
        if mine:
            cells = [str(mine[size].failed["default"]) if size in mine else "" for size in sizes]
            lines.append([program, WORDS[kind], *cells, _size(least_found(mine.values(), "default"))])
    return lines


def _sizes(rows: Sequence[Planted]) -> list[float]:
    return sorted({row.asked_pct for row in rows if row.asked_pct is not None})


def _size(row: Planted | None) -> str:
    return "none" if row is None else f"{row.planted_ms:.3f} ms ({row.planted_pct:.1f}%)"


def slowdowns(rows: Sequence[Planted], recordings: By) -> str:
    """Which planted slowdowns are found, and which are not and why."""

    def row(program: str, kind: str, pct: float | None = None) -> Planted:
        (one,) = (r for r in rows if (r.program, r.kind, r.asked_pct) == (program, kind, pct))
        return one

    def floor(program: str, metric: str) -> str:
        return f"{floor_ms(clean(recordings[program], 'first'), metric):.2f} ms"

    waiting, busy = row("prefetch", "copy", 1.0), row("decode", "host", 5.0)
    uploaded, sent = row("offload", "copy", 5.0), row("training", "copy", 5.0)
    again = max(row(name, "synchronize").grown_pct for name in ("decode", "training"))
    (comparisons,) = {one.comparisons for one in rows}
    head = ["program", "planted", *(f"{size:g}%" for size in _sizes(rows)), "the least found every time"]
    return wrapped(f"""## Planted slowdowns

A kernel, a copy or, on the host, a busy loop was added to each step where nothing else runs, so that the step becomes
longer by that. In how many of {comparisons} comparisons with the clean recordings of its set the default check fails,
by the share of the step that was asked for (a blank was not recorded):

{table(head, found_sizes(rows), words=2)}

What was really planted differs a little from what was asked for; the table at the end has both. A copy in `prefetch`
costs more than its length: it has to wait for the batch's copy, and the compute for it (the step with
{waiting.planted_pct:.1f}% planted is {waiting.grown_pct:.0f}% longer).

What changes a program's ways is always found, and named: batches in pageable memory (`pageable-memory`), copies on the
default stream (`same-stream`), and a synchronize in a program that had none (`host-sync`).

### What is not found

- **Work of the host where the host bounds the program.** {busy.planted_ms:.3f} ms of it are nothing beside the
  {floor("decode", "step_time")} by which a step of `decode` may differ. By default `step_time` and `idle_time` guard
  such a program only against a host that takes several times as long; what the GPU computes and copies is guarded well.
- **Copies where copies are exposed anyway.** {uploaded.planted_ms:.3f} ms in `offload` are less than the 10% by which
  `exposed_copy_time` may increase, and than its noise floor of {floor("offload", "exposed_copy_time")}.
  {sent.planted_ms:.3f} ms in `training` are less than its {floor("training", "exposed_copy_time")}: what is exposed
  there was launched late, which is the host's doing. `diff` lists such copies all the same.
- **A synchronize where the program waits anyway.** `decode` and `training` read a result in every step. One wait more
  changes their steps by less than noise ({again:.0f}% at most).
- **Kernels of less than 3% of the compute**, by which `compute_time` may increase, or of less than
  {100 * GPU_SHARE:g}% of the step, its noise floor. `diff` names every new kernel, however short.
""")


def stricter(found: Sequence[Repeated], rows: Sequence[Planted]) -> str:
    """What other settings find, and at which price."""
    whole, lines = _summed(one.pairs for one in found), []
    for name in SETTINGS:
        wrong = _summed(one.failed[name] for one in found)
        cells = [f"{bad} of {pairs}" for bad, pairs in zip(wrong, whole, strict=True)]
        tried = [[row for row in rows if (row.program, row.kind) == one] for one in TRIED]
        lines.append([name, *cells, *(_size(least_found(mine, name)) for mine in tried)])
    head = ["settings", "pairs of one set", "of two sets", *(f"{program}, {WORDS[kind]}" for program, kind in TRIED)]
    return wrapped(f"""## Stricter settings

**Lower the percentages**, and keep the noise floors. In `overlapscope.toml`:

{textwrap.indent(LOWER, "    ")}
**Set a fixed `noise_floor`**, here of 1% of the step, where the machine is yours alone:

{textwrap.indent(FIXED, "    ")}
On these same recordings: how many clean pairs fail, each a false alarm, and the least that is found every time:

{table(head, lines, words=1)}

The defaults leave room for machines noisier than this one; a fixed noise floor needs one that is quieter.

**Take a quieter machine**: nobody else on the host, clocks locked, the process bound to cores near its GPU.

**Record several times.** A change that is in each of three recordings, made apart, is hardly an accident.
""")


def everything(rows: Sequence[Planted]) -> list[list[str]]:
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


def all_planted(rows: Sequence[Planted]) -> str:
    """The table of all of them."""
    head = ["program", "planted", "budgets that fail", "beyond noise in every diff"]
    head += ["asked", "measured", "mean step", "check fails", "step beyond noise in a diff"]
    text = wrapped("""## All planted slowdowns

In brackets how often a budget fails, where that is not every time the check does; and the share of a clean step.
""")
    return f"{text}{table(head, everything(rows), words=4)}\n"


def opening(found: Sequence[Repeated], rows: Sequence[Planted]) -> str:
    """What the page comes to."""
    pairs, failed = _summed(one.pairs for one in found), _summed(one.failed["default"] for one in found)
    kernels = [
        least_found([row for row in rows if (row.program, row.kind) == (name, "compute")], "default")
        for name in PROGRAMS
    ]
    sizes = sorted(one.asked_pct for one in kernels if one is not None and one.asked_pct is not None)
    return wrapped(f"""# Noise between recordings

Written by `python -m benchmarks.noise docs/evaluation/noise.md` from `tests/repeats.tar.xz`; a test fails where the
parts that are quick to make are stale. It is why `overlapscope diff` and `overlapscope check --baseline` let some
changes pass.

**In short:** at default settings {sum(failed)} of {sum(pairs)} pairs of recordings of one and the same program fail. A
kernel that takes {sizes[0]:g} to {sizes[-1]:g}% of a step, depending on the program, is found every time, and so are
pageable memory and copies on the default stream. What the host does is not guarded so closely: from one recording to
the next it may be half as fast.
""")


def page(folder: Path) -> str:
    """The page, from an unpacked archive."""
    recordings = read(folder)
    with ProcessPoolExecutor() as pool:
        slow = pool.map(repeated, recordings.values()), pool.map(planted, recordings.values())
        found, rows = list(slow[0]), list(itertools.chain.from_iterable(slow[1]))
    return "".join(
        [
            opening(found, rows),
            how(folder),
            repeats(recordings),
            floors(recordings),
            alike(found),
            slowdowns(rows, recordings),
            stricter(found, rows),
            all_planted(rows),
        ]
    )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, metavar="FILE", help="where to write it: docs/evaluation/noise.md")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        unpack(Path(name))
        options.page.write_text(page(Path(name)))


if __name__ == "__main__":
    main(sys.argv[1:])
