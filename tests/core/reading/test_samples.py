"""The samples that travel with the package."""

from __future__ import annotations

import pytest

from overlapscope.commands import main
from overlapscope.reading.samples import SAMPLES, WHAT_THEY_ARE
from tests.support.helpers import TRACES
from tests.support.recordings import report_of


def test_every_sample_is_reported_and_no_other() -> None:
    assert {path.name for path in SAMPLES.iterdir()} == set(WHAT_THEY_ARE)


def test_each_is_a_recording_of_the_repository() -> None:
    of_the_repository = {path.read_bytes() for path in TRACES.rglob("*.json*")}
    assert all(path.read_bytes() in of_the_repository for path in SAMPLES.rglob("*.json*"))


@pytest.mark.parametrize("name", ["training_naive.json.gz", "training_prefetched.json.gz"])
def test_the_pair_has_enough_steps_for_a_diff_and_a_baseline(name: str) -> None:
    [device] = report_of(SAMPLES / name).devices
    assert len(device.steps) >= 5


def test_a_script_gets_their_directory_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["samples"]) == 0
    assert capfd.readouterr().out == f"{SAMPLES}\n"


def test_a_person_is_told_what_they_are_too(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["samples"]) == 0
    first, *others = capfd.readouterr().out.splitlines()
    assert first == str(SAMPLES)
    assert [line.split()[0] for line in others] == list(WHAT_THEY_ARE)
