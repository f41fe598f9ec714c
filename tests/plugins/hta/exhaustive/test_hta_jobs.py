"""HTA on our object says what HTA says by itself, of each kind of job."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("hta", reason="compares with HolisticTraceAnalysis")
from tests.plugins.hta.process.test_hta_object import (
    CASES,
    DDP,
    JOBS,
    assert_same_frames,
    assert_same_results,
    read,
    whole,
)
from tests.plugins.hta.recordings import TRACES

__all__ = ["whole"]


@pytest.mark.parametrize("job", JOBS[2:])
def test_frames_are_those_that_hta_makes(job: tuple[str, ...], whole: Any) -> None:
    assert_same_frames(whole(job))


@pytest.mark.parametrize("job", [DDP, *JOBS[5:]])
def test_frames_are_rounded_as_hta_rounds(job: tuple[str, ...]) -> None:
    assert_same_frames(read({rank: TRACES / f"{name}.json.gz" for rank, name in enumerate(job)}))


@pytest.mark.parametrize(("job", "name"), [case for case in CASES if case[0] != JOBS[1]])
def test_every_analysis_says_the_same(job: tuple[str, ...], name: str, whole: Any) -> None:
    assert_same_results(whole(job), name)
