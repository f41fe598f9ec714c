"""On a real GPU: the programs of `tests/programs/known_causes.py`, recorded here and now, must show the same causes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from overlapscope.analysis import analyze_trace
from overlapscope.commands import main
from overlapscope.reading import load
from tests.programs import known_causes

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TRUTH: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "traces" / "truth.toml").read_text())
NAMES = [name.removeprefix("known_causes/") for name in TRUTH if name.startswith("known_causes/")]
# On another GPU copies and compute weigh differently; the expected cause must still be the largest.
LEAST = 0.5


@pytest.mark.parametrize("name", NAMES)
def test_a_fresh_recording_shows_its_cause(name: str, tmp_path: Path) -> None:
    program, options = known_causes.RECORDED_OTHERWISE.get(name, (name, {}))
    path = tmp_path / f"{name}.json.gz"
    known_causes.record(known_causes.PROGRAMS[program](), path, **options)
    (device,) = analyze_trace(load(path)).result.devices
    for subject, causes in (("exposed_copy", device.exposed_copy_by_cause), ("idle", device.idle_by_cause)):
        if subject in TRUTH[f"known_causes/{name}"]:
            expected = TRUTH[f"known_causes/{name}"][subject]["cause"]
            whole = sum(causes.values())
            assert causes[expected] >= LEAST * whole > 0, (subject, {c: ns for c, ns in causes.items() if ns})


def test_doctor_records_what_the_gpu_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert re.search(r"recorded \d+ GPU ops? in a test run", " ".join(capsys.readouterr().out.split()))
