"""The page of public programs says what was measured, and edits by hand are those of the list."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

from benchmarks.processes import RunFailed
from benchmarks.public_programs import KEPT, TRIED, write_page
from benchmarks.public_programs_clock import Clocked, Disturbance
from benchmarks.public_programs_page import recorded, undisturbed, usual
from benchmarks.public_programs_runs import table
from benchmarks.public_programs_try import edited
from overlapscope.plugins.trials.result import Edit, Tried

PAGE = Path("docs/evaluation/public-programs.md")


def test_the_page_follows_from_the_measurements(tmp_path: Path) -> None:
    write_page(tmp_path / PAGE.name, KEPT, TRIED)
    written = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert written == {name: PAGE.with_name(name).read_text(encoding="utf-8") for name in written}


def test_steps_that_the_recorder_disturbs_are_left_out_until_the_program_has_settled() -> None:
    ends = list(accumulate([9] * 20 + [1] * 10, initial=0))
    assert list(undisturbed(Clocked(ends), 1)) == [1] * 10
    alone = Clocked(ends, [Disturbance(182, 184, workers=False)])
    # Steps 22 to 24 are disturbed, and one more is left out.
    assert len(list(undisturbed(alone, 1))) == 7
    fed = Clocked(ends, [Disturbance(182, 184, workers=True)])
    assert len(list(undisturbed(fed, 1))) == 4
    assert list(undisturbed(Clocked(list(range(0, 100, 2))), 2)) == [4] * 4


def test_recorded_steps_are_those_inside_a_recording_without_its_first() -> None:
    ends = list(accumulate([9] * 20 + [1] * 10, initial=0))
    parts = [Disturbance(10, 40, workers=False), Disturbance(182, 187, workers=False)]
    assert recorded(Clocked(ends, parts), 1) == [1] * 4
    assert recorded(Clocked(ends), 1) == []


def test_the_usual_pace_is_that_of_most_time_with_its_longer_steps() -> None:
    warm_up, later = [100] * 40, [10] * 300 + [150] + [11] * 300
    assert sorted(usual([*warm_up, *later])) == sorted(later)
    assert usual([*warm_up, *later[:100]]) == warm_up
    assert usual([]) == []


def test_changes_are_made_by_hand_as_the_list_says() -> None:
    edits = table().programs["mnist"].edits
    tried = Tried(
        change="non-blocking",
        value="",
        title="",
        after=("workers (8)",),
        predicted_pct=None,
        step_ns=None,
        measured_pct=None,
        measured_low_pct=None,
        measured_high_pct=None,
        added_pct=None,
        added_low_pct=None,
        added_high_pct=None,
        verdict="unknown",
        kept=False,
        runs=0,
        results="unknown",
        races=None,
        failure="",
        edit=Edit(diff="", advice=()),
    )
    script = "kwargs = {'num_workers': 1,}\ndata, target = data.to(device), target.to(device)\n"
    assert edited(script, tried, edits) == (
        "kwargs = {'num_workers': 8,}\n"
        "data, target = data.to(device, non_blocking=True), target.to(device, non_blocking=True)\n"
    )
    with pytest.raises(RunFailed, match="num_workers"):
        edited("loader = DataLoader(dataset)\n", tried, edits)
