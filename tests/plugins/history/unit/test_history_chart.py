"""The chart of a metric over commits, hours and reports; and the reports that the dashboard's page is drawn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from overlapscope.catalog.measures import METRICS
from overlapscope.errors import UsageError
from overlapscope.plugins.history.course import Course
from overlapscope.plugins.history.document import chart
from overlapscope.plugins.history.levels import By, Group, levels
from overlapscope.plugins.history.store import Store
from overlapscope.plugins.history.stored import Stored, find
from tests.plugins.history.histories import BEGIN_NS, HOUR_NS, commit_of, weeks, write

HOSTILE = "<b>bold</b>"


def groups(count: int, slow_from: int, commit: str | None = None, unit: float = 1e6) -> list[Group]:
    random = np.random.default_rng(1)
    return [
        Group(
            ids=(f"{number:032x}",),
            at_ns=BEGIN_NS + number * HOUR_NS,
            commit=commit or commit_of(number % 256),
            value=unit * (10 if number < slow_from else 12) * random.normal(1, 0.01),
            error=0.05 * unit,
            floor=0.1 * unit,
        )
        for number in range(count)
    ]


def course(metric: str, of: list[Group], by: By) -> Course:
    metric_of = METRICS[metric]
    result = levels(of, more_is_better=bool(metric_of.more_is_better))
    return Course(metric=metric, unit=metric_of.unit, plain=False, gpu="a GPU", by=by, levels=result)


def test_a_point_knows_its_report_and_a_change_since_when_it_is() -> None:
    drawn = chart(course("step_time", groups(20, 12), "commit"), False, [f"{3:032x}"])
    points, band, level, ring = drawn["data"]
    assert [item[0] for item in points["customdata"]] == [f"{number:032x}" for number in range(20)]
    assert points["y"][0] == pytest.approx(10, rel=0.05) and points["error_y"]["array"] == [0.05] * 20
    assert level["x"] == [0, 11, None, 12, 19, None] and band["fill"] == "toself"
    assert ring["x"] == [3]
    [mark] = drawn["layout"]["annotations"]
    assert mark["x"] == 12 and mark["text"].startswith("since 0c0c0c0c0c, +") and mark["text"].endswith("%")
    assert drawn["layout"]["yaxis"]["title"]["text"] == "step_time, ms"


def test_a_year_is_thinned_and_its_levels_are_those_of_all() -> None:
    result = course("step_time", groups(52_560, 40_000), "report")
    chosen = f"{20_001:032x}"
    points, _, level, ring = chart(result, False, [chosen])["data"]
    assert len(points["x"]) < 1300
    assert chosen in [item[0] for item in points["customdata"]] and len(ring["x"]) == 1
    last = [item for item in level["x"] if item is not None]
    assert len(last) == 4 and last[0] == "2025-06-15T15:06:40"
    assert min(points["y"]) == min(group.value for group in result.levels.groups) / 1e6


def test_names_and_percentages_are_reported_as_they_are() -> None:
    drawn = chart(course("efficiency_pct", groups(20, 12, HOSTILE, unit=1), "commit"), True)
    assert drawn["layout"]["annotations"][0]["text"].startswith("since &lt;b&gt;bold")
    assert drawn["layout"]["annotations"][0]["text"].endswith(" points")
    assert "<b>" not in str(drawn)


# -- Fields for the dashboard -----------------------------------------------------------------------


def test_a_history_that_grows_is_another_one_and_one_that_is_read_is_not(tmp_path: Path) -> None:
    first, second = weeks(2, 1)
    stored = find(str(write(tmp_path / "history.sqlite", first)))
    assert stored is not None
    before = stored.state
    with Store.open(stored.path, read_only=True) as store:
        assert store.ids() == {first.id}
    assert stored.state == before
    write(stored.path, second)
    assert stored.state != before


def test_what_is_not_a_history_is_reported_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no history yet"):
        find(str(tmp_path / "missing.sqlite"))
    (tmp_path / "text").write_text("hello, this is no database at all")
    with pytest.raises(UsageError, match="not a history"):
        find(str(tmp_path / "text"))
    monkeypatch.setenv("OVERLAPSCOPE_HISTORY", str(tmp_path / "later.sqlite"))
    stored = find(None)
    assert stored == Stored(tmp_path / "later.sqlite") and stored.state == ""
    with Store.open(stored.path):
        pass
    assert stored.state
