"""Differences between the phases of an inference server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import overlapscope as ov
from overlapscope.commands import main
from overlapscope.compare.diff import diff
from tests.core.budgets.test_phase_budgets import DECODE, PREFILL, recording
from tests.support.served import Pass, write_server

MIXED = "execute_context_1(300)_generation_7(7)"


def test_phases_are_compared_with_themselves(tmp_path: Path) -> None:
    before, after = recording(tmp_path / "a.json", prefill=900), recording(tmp_path / "b.json", prefill=9000)
    (device,) = ov.diff(before, after).devices
    assert device.phases
    changes = {phase.name: phase.figures.span for phase in device.phases if phase.figures is not None}
    assert changes["prefill"].beyond_noise and changes["prefill"].change == pytest.approx(8.1e6)
    assert changes["decode"].change == 0
    sides = {phase.name: (phase.count_before, phase.count_after) for phase in device.phases}
    assert sides == {"prefill": (7, 7), "decode": (19, 19)}


def test_a_phase_has_the_same_figures_by_itself_and_as_the_phase_of_the_device(tmp_path: Path) -> None:
    path = recording(tmp_path / "a.json")
    content = json.loads(path.read_text())
    kernels = [event for event in content["traceEvents"] if event.get("cat") == "kernel"]
    for event in kernels[::3]:
        event |= {
            "cat": "gpu_memcpy",
            "name": "Memcpy HtoD (Pinned -> Device)",
            "args": event["args"] | {"bytes": 1 << 20},
        }
    path.write_text(json.dumps(content))
    (device,) = ov.diff(path, path).devices
    assert device.figures.bucket("exposed copy").before
    assert device.phases and device.figures in [phase.figures for phase in device.phases]


def test_the_table_shows_each_phase_and_those_of_one_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = recording(tmp_path / "a.json")
    after = write_server(tmp_path / "b.json", [Pass([MIXED], gpu=2000)] * 7 + [Pass([DECODE], gpu=700)] * 20)
    assert main(["diff", str(before), str(after)]) == 0
    out = capsys.readouterr().out
    # Prefill steps took most time before, and there are none after.
    assert out.startswith("Step 13.3% slower, which may be noise (743.0 to 842.0 us)")
    rows = {line.split(",")[0]: line for line in out.splitlines() if " → " in line and "steps" in line}
    assert "19 → 19 steps" in rows["decode"] and "+99.0" in rows["decode"]
    assert rows["prefill"].split()[-1] == "gone" and rows["mixed"].split()[-1] == "new"
    busy = next(line for line in out.splitlines() if "GPU busy" in line)
    assert busy.split()[2:5] == ["625.0", "724.0", "+99.0"]


def test_a_phase_that_one_side_recorded_in_part_only_is_neither_new_nor_gone(tmp_path: Path) -> None:
    passes = [Pass([MIXED], gpu=2000), *[Pass([DECODE], gpu=700)] * 20]
    whole = ov.analyze(write_server(tmp_path / "a.json", passes))
    [trace] = whole.traces
    [device] = trace.devices
    assert device.served
    phases = tuple(replace(each, per_step=None) if each.phase == "mixed" else each for each in device.served.phases)
    steps = (replace(device.steps[0], partial=True), *device.steps[1:])
    cut = replace(device, served=replace(device.served, phases=phases), steps=steps)
    partial = replace(whole, traces=(replace(trace, devices=(cut,)),))
    for pair in ((whole, partial), (partial, whole), (partial, partial)):
        (compared,) = diff(*pair).devices
        assert compared.phases and [phase.name for phase in compared.phases] == ["decode"]


def test_a_server_of_a_single_phase_has_no_table_of_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_server(tmp_path / "a.json", [Pass([PREFILL], gpu=600)] * 20)
    assert main(["diff", str(trace), str(trace), "--format", "json"]) == 0
    assert "phases" not in json.loads(capsys.readouterr().out)["devices"][0]
