"""Names of further traces, and options of a window that do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.errors import UsageError
from overlapscope.recorder.destination import window_path

pytest.importorskip("torch", reason="records with torch")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("runs/x.trace.json.gz", "runs/x-2.trace.json.gz"),
        ("x.json", "x-2.json"),
        ("runs/x.traces/rank3.trace.json.gz", "runs/x-2.traces/rank3.trace.json.gz"),
    ],
)
def test_further_traces_have_numbers(path: str, expected: str) -> None:
    assert window_path(Path(path), 2) == Path(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"duration_s": 1, "active": 2}, "delay_s or duration_s and active both choose what is recorded"),
        ({"delay_s": 0, "slow_step": 2}, "slow_step and delay_s or duration_s both choose"),
        ({"delay_s": float("nan")}, "delay_s is nan; it must be 0 or more"),
        ({"duration_s": 0}, "duration_s is 0; it must be more than 0"),
        ({"slow_step": 1}, "slow_step is 1; it must be more than 1"),
        ({"slow_step": 2, "warmup": 0}, "slow_step needs a warmup"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, float], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        ov.record(tmp_path / "x.json", **options)  # type: ignore[arg-type]
