"""Writes `docs/evaluation/diagnoses.md`, what the analysis says of each recording beside what is true of it, and
`docs/evaluation/experiments.md`, the laboratory's report of the bundled results.

python benchmarks/diagnoses.py
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.results import Device
from overlapscope.laboratory import store
from overlapscope.laboratory.comparison import TruthVerdict, check_truth, compare
from overlapscope.laboratory.document import document
from overlapscope.laboratory.results import Results
from overlapscope.reading import load
from overlapscope.render import markdown

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evaluation" / "diagnoses.md"
EXPERIMENTS = ROOT / "docs" / "evaluation" / "experiments.md"
LABORATORY = ROOT / "traces" / "laboratory"
OTHERS = {LABORATORY, ROOT / "traces" / "further", ROOT / "traces" / "second"}
"""Recordings that predictions are held against; nothing is stated of their causes."""

HEAD = """# Causes against truth

Written by `python benchmarks/diagnoses.py` from the recordings in `traces/`; a test fails when it is stale. The truth
follows from how each program is written (`tests/programs`), not from what was found. Shares are of the device's
exposed copy time or idle time; an expected cause must explain at least the share in brackets. No cause is expected if
several play together, or if there is almost nothing to explain. The causes were stated before the analysis ran; the
least shares were set with the first results in view, below what the unavoidable rest (launching, latency) leaves.

`mixed_workloads` were recorded after the causes had been written, to test them on something they were not written
for. They showed two errors, which are fixed: idle time of one device waiting for another was `unknown`, and a
loader's alternating steps were taken for a warm-up. A review with made-up and mutated traces found more, among them
late batches of several tensors and clocks that differ by 12 us; `tests/unit/test_causes.py` tests each. Six more
programs (`amp_training` to `uneven_prefetch`) were recorded after that. Two of them showed that idle time after a
synchronize was charged to it for the first gap only, and that CPU ops under a millisecond were taken for waiting;
both are fixed. For `amp_training` the expectation itself was wrong: its host is too slow ever to wait long.

`pytest -m gpu` runs all tests that need a GPU. It records the programs of `known_causes` again on the GPU at hand and
expects the same causes; records prefetching loops, graphs and programs that choose their GPUs late; runs the hazard
checker on programs with and without races; and checks the results of each scenario. On an H200 (torch 2.11, CUDA 13.0,
November 2026) all 140 tests that one GPU can run passed in two minutes; the two experiments on two GPUs were skipped.

"""


LABORATORY_HEAD = """
## The laboratory

The recordings of the experiments in `scenarios/`, at the published sizes, made with overlapscope's own recorder. Each
scenario file says what its recordings must show; that was written before any of them was recorded. A rule in brackets
must not fire. Figures are of the judged steps, without the recorder's warm-up. Before that, all experiments on one
GPU had been run at the small scale: there 4 of 326 claims did not hold, all because a small model does not keep an
H200 busy. In two variants without pinned memory the DataLoader was too slow, the prefetcher had nothing to hide
copies under, and two streams of products of 5000 x 5000 gained 3% (`streams-without-overlap` asks for less).
[Published experiments](experiments.md) compares the measurements with the published figures.

"""


def page() -> str:
    """The page, from all recordings."""
    return f"{_recordings()}{LABORATORY_HEAD}{_laboratory(store.read(LABORATORY))}"


def experiments() -> str:
    """The laboratory's report."""
    return markdown.render(document(compare(store.read(LABORATORY))))


def _laboratory(results: Results) -> str:
    lines = ["| variant | copies exposed, GPU idle, share hidden: expected | found | findings expected | found |"]
    lines.append("|---|---|---|---|---|")
    agreed = stated = 0
    for experiment in results.experiments:
        for variant in experiment.variants:
            for analysis in variant.analyses:
                verdicts = list(check_truth(variant.truth, analysis, analysis.rules))
                stated += len(verdicts)
                agreed += sum(verdict.holds is True for verdict in verdicts)
                times = [verdict for verdict in verdicts if "finding" not in verdict.subject]
                rules = [verdict for verdict in verdicts if "finding" in verdict.subject]
                rank = f", rank {analysis.rank}" if len(variant.analyses) > 1 else ""
                cells = [
                    f"{experiment.name}/{variant.name}{rank}",
                    "<br>".join(f"{verdict.subject}: {verdict.expected}" for verdict in times),
                    "<br>".join(f"{verdict.found}{_wrong(verdict)}" for verdict in times),
                    ", ".join(v.expected if v.subject == "finding" else f"({v.expected})" for v in rules),
                    f"{rules[0].found}{''.join(map(_wrong, rules))}" if rules else "",
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return f"What was expected was found in **{agreed} of {stated}** cases.\n\n" + "\n".join(lines) + "\n"


def _wrong(verdict: TruthVerdict) -> str:
    return "" if verdict.holds else f" **(not {verdict.expected})**"


def _recordings() -> str:
    truth: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "traces" / "truth.toml").read_text())
    lines = [
        "| recording | exposed copy | expected | found | idle | expected | found |",
        "|---|---:|---|---|---:|---|---|",
    ]
    agreed = expected = 0
    paths = [path for path in (ROOT / "traces").rglob("*.json.gz") if not OTHERS & {*path.parents}]
    for path in sorted(paths, key=lambda p: (len(p.parts), str(p))):
        name = path.relative_to(ROOT / "traces").as_posix().removesuffix(".json.gz")
        devices = analyze_trace(load(path, progress=False)).result.devices
        for device in devices:
            cells = [f"{name} (device {device.device})" if len(devices) > 1 else name]
            for key, causes, ns in _subjects(device):
                known = truth.get(name, {}).get(key)
                expected += known is not None and ns > 0
                agreed += known is not None and ns > 0 and causes[known["cause"]] >= known["least_share"] * ns
                wanted = f"{known['cause']} ({100 * known['least_share']:.0f}%)" if known and ns else ""
                cells += [f"{ns / 1e6:.2f} ms", wanted, _found(causes, ns)]
            lines.append(f"| {' | '.join(cells)} |")
    verdict = f"The expected cause explains the expected share in **{agreed} of {expected}** cases.\n\n"
    return HEAD + verdict + "\n".join(lines) + "\n"


def _subjects(device: Device) -> list[tuple[str, dict[str, int], int]]:
    return [
        ("exposed_copy", device.exposed_copy_by_cause, device.buckets.exposed_copy_ns),
        ("idle", device.idle_by_cause, device.buckets.idle_ns),
    ]


def _found(causes: dict[str, int], whole: int) -> str:
    largest = sorted(causes.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{cause} {100 * ns / whole:.0f}%" for cause, ns in largest if ns * 100 >= whole > 0)


if __name__ == "__main__":
    PAGE.write_text(page())
    EXPERIMENTS.write_text(experiments())
