"""`overlapscope history` and its `check`, and `check --history`, as CI calls them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overlapscope.commands import main
from overlapscope.plugins.history.store import Store
from overlapscope.reading.samples import SAMPLES
from tests.plugins.history.entries import figure, make_entry
from tests.support.diff_samples import HOSTILE

NAIVE, PREFETCHED = str(SAMPLES / "training_naive.json.gz"), str(SAMPLES / "training_prefetched.json.gz")
DAY, BEGUN = 86_400 * 10**9, 1_790_000_000 * 10**9
SAME = tuple(np.random.default_rng(1).normal(80.0, 0.3, 12))


@pytest.fixture(autouse=True)
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "history.sqlite"
    monkeypatch.setenv("OVERLAPSCOPE_HISTORY", str(path))
    return path


def fill(values: Sequence[float], *, job: str = "train.py", **more: Any) -> None:
    """Add one report a day with these values of efficiency, and a step that is always the same."""
    with Store.open() as store:
        for day, value in enumerate(values):
            figures = [
                figure("efficiency_pct", float(value), spread=0.1, floor=1.0),
                figure("step_time", 1e7, spread=1e3, floor=1e5),
            ]
            store.add(make_entry(BEGUN + day * DAY, figures, job=job, commit=f"{day:040x}", **more))


def checked(*arguments: str) -> int:
    return main(["history", "check", *arguments])


def test_the_newest_like_the_others_passes(capsys: pytest.CaptureFixture[str]) -> None:
    fill(SAME)
    assert checked() == 0
    out = capsys.readouterr().out
    assert "The newest report of train.py is no worse than its level." in out
    assert "step_time is 10 ms, and its level is 10 ms (11 values since commit" in out


def test_the_newest_that_is_worse_fails_with_the_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    fill([*SAME, 60.0])
    assert checked() == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "The newest report of train.py is worse than its level in 1 metric." in out
    assert "efficiency_pct is 60%, and its level is 80." in out and "it is worse, " in out and "points less" in out
    assert checked("--metric", "step_time") == 0
    capsys.readouterr()
    assert checked("--format", "json") == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["outcome"], document["exit_code"]) == ("fail", 1)
    assert [metric["standing"]["status"] for metric in document["metrics"]] == ["worse", "same"]


def test_better_is_not_a_failure() -> None:
    fill([*SAME, 99.0])
    assert checked() == 0


@pytest.mark.parametrize(("newest", "code"), [(1.0, 0), (1.5, 1)])
def test_programs_without_a_gpu_are_judged_by_their_steps(
    newest: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open() as store:
        for day, value in enumerate([*SAME, newest * SAME[0]]):
            figures = [figure("host_step_time", 1e5 * float(value), spread=1e3, floor=1e5)]
            store.add(make_entry(BEGUN + day * DAY, figures, gpu=None))
    assert checked() == code
    capsys.readouterr()
    assert main(["history"]) == 0
    assert len(re.findall(r" ms +n/a +n/a", capsys.readouterr().out)) == len(SAME) + 1, "their steps are listed"


@pytest.mark.parametrize("count", [1, 5])
def test_few_reports_give_no_answer(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    fill(SAME[:count])
    assert checked() == 3
    assert "cannot show what is noise" in " ".join(capsys.readouterr().out.split())


def test_a_newest_report_without_the_figure_or_of_another_gpu_gives_no_answer() -> None:
    fill(SAME)
    with Store.open() as store:
        store.add(make_entry(BEGUN + 50 * DAY, [figure("step_time", 1e7, floor=1e5)]))
    assert checked() == 3
    with Store.open() as store:
        store.add(make_entry(BEGUN + 51 * DAY, [figure("efficiency_pct", 20.0, floor=1.0)], gpu="other"))
    assert checked() == 3


def test_a_branch_without_reports_gives_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    fill(SAME, branch="main")
    assert checked("--branch", "main") == 0
    capsys.readouterr()
    assert checked("--branch", "other") == 3
    assert "none of these metrics" in capsys.readouterr().out


def test_recordings_are_not_judged_by_the_plain_program() -> None:
    fill(SAME)
    fill([value - 40 for value in SAME[:7]], plain=False, host="h")
    with Store.open() as store:
        store.add(make_entry(BEGUN + 60 * DAY, [figure("efficiency_pct", 40.0, spread=0.1, floor=1.0)], plain=False))
    assert checked("--metric", "efficiency_pct") == 0


def test_since_which_commit_it_is_worse_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    fill([*SAME, *(value - 20 for value in SAME)])
    assert main(["history", "--by", "commit"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "efficiency_pct is worse since commit 0000000000 (2026-10-03 14:13 UTC): 60." in out
    assert "points less" in out and "Values, oldest first" in out
    for format in ("markdown", "html", "json"):
        assert main(["history", "--format", format, "--metric", "efficiency_pct"]) == 0
        out = capsys.readouterr().out
        assert "efficiency_pct" in out
    document = json.loads(out)
    assert document["job"] == "train.py" and document["courses"][0]["levels"]["changes"][0]["first"] == 12


def test_no_interval_has_what_no_figure_can_be(capsys: pytest.CaptureFixture[str]) -> None:
    fill([0.0] * 12 + [100.0] * 12)
    assert main(["history", "--metric", "efficiency_pct", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)["courses"][0]["levels"]["levels"]
    assert [(entry["value"], entry["low"] >= 0, entry["high"] <= 100) for entry in document] == [
        (0.0, True, True),
        (100.0, True, True),
    ]


def test_options_before_an_action_count_or_are_refused(capsys: pytest.CaptureFixture[str], history: Path) -> None:
    fill([*SAME, 60.0], job="b.py")
    fill(SAME[:3], job="a.py")
    assert main(["history", "--job", "b.py", "check"]) == checked("--job", "b.py") == 1
    assert main(["history", "--job", "b.py", "--metric", "step_time", "--by", "commit", "check"]) == 0
    assert main(["history", "--job", "b.py", "prune", "--keep", "1"]) == 0
    with Store.open(history) as store:
        assert [row.origin.job for row in store.rows()].count("a.py") == 3
        assert [row.origin.job for row in store.rows()].count("b.py") == 1
    capsys.readouterr()
    assert main(["history", "--commit", "0", "check"]) == 2
    assert "--commit before check is an option of `overlapscope history` without an action" in capsys.readouterr().err
    assert main(["history", "prune", "--job", "c.py", "--keep", "1"]) == 2
    assert "has no job 'c.py'" in capsys.readouterr().err
    assert main(["history", "--history", "typo.sqlite", "prune", "--keep", "1"]) == 2
    assert not Path("typo.sqlite").exists()


def test_a_commit_that_is_recorded_again_is_the_newest() -> None:
    fill(SAME)
    assert checked("--by", "commit") == 0
    with Store.open() as store:
        figures = [figure("efficiency_pct", 40.0, spread=0.1, floor=1.0)]
        store.add(make_entry(BEGUN + 99 * DAY, figures, job="train.py", commit=f"{3:040x}"))
    assert checked("--metric", "efficiency_pct") == 1
    # Two recordings of a commit make one value, in the middle between them.
    assert checked("--metric", "efficiency_pct", "--by", "commit") == 1


def test_the_job_is_the_one_that_has_the_branch(capsys: pytest.CaptureFixture[str]) -> None:
    fill(SAME, job="b.py", branch="x")
    fill([*SAME, 80.0], job="a.py", branch="y")
    assert checked("--branch", "x") == 0
    assert "The newest report of b.py" in capsys.readouterr().out
    assert main(["history", "--branch", "x"]) == 0
    assert "b.py, by report" in capsys.readouterr().out
    assert main(["history", "--branch", "z", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["courses"] == []


def test_a_name_that_is_wrong_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert checked() == 2
    fill(SAME)
    assert checked("--job", "trian.py") == 2
    assert "did you mean 'train.py'?" in capsys.readouterr().err
    assert checked("--metric", "effciency_pct") == 2
    assert "did you mean 'efficiency_pct'?" in capsys.readouterr().err


def test_names_that_mean_harm_stay_text(capsys: pytest.CaptureFixture[str]) -> None:
    fill([*SAME, *(value - 20 for value in SAME)], job=HOSTILE, gpu=HOSTILE)
    with Store.open() as store:
        store.add(make_entry(BEGUN + 90 * DAY, [figure("efficiency_pct", 1.0, floor=1.0)], job=HOSTILE, commit=HOSTILE))
    for format in ("text", "markdown", "html"):
        main(["history", "--format", format])
        checked("--format", format)
        out = capsys.readouterr().out
        assert "<script>x" not in out and "\x1b[31m" not in out


def test_a_check_takes_its_baseline_from_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        assert main(["history", "add", PREFETCHED, "--job", "train.py", "--label", f"n={number}"]) == 0
    assert main(["check", PREFETCHED, "--history", "--job", "train.py"]) == 0
    assert "the baseline is report" in capsys.readouterr().err
    assert main(["check", NAIVE, "--history", "--job", "train.py"]) == 1
    assert main(["check", NAIVE, "--history", "--job", "other.py"]) == 2
    assert main(["check", NAIVE, "--history", "--baseline", PREFETCHED]) == 2
    assert main(["check", NAIVE, "--job", "train.py"]) == 2
