"""The Python API: what takes a trace takes its file, too, and errors are of our own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.errors import NotInTrace, UnreadableTrace, UsageError
from overlapscope.inputs import Source

TRACES = Path(__file__).parent.parent.parent.parent / "traces"
PAGEABLE, PIPELINE = TRACES / "streamed1_pinned0.json.gz", TRACES / "pipeline_1stream.json.gz"
RANKS = TRACES / "ddp"


def test_what_takes_a_trace_takes_its_file_too() -> None:
    trace = ov.load(PAGEABLE)
    for path in (PAGEABLE, str(PAGEABLE)):
        assert ov.analyze(path) == ov.analyze(trace)
        assert ov.whatif(path, ["pin"]) == ov.whatif(trace, ["pin"])
        assert ov.check(path) == ov.check(trace)
        assert ov.diff(path, PIPELINE) == ov.diff(trace, ov.load(PIPELINE))


def test_what_takes_the_traces_of_a_job_takes_directories_patterns_and_lists_of_files() -> None:
    ranks = [ov.load(RANKS / f"rank{number}.json.gz") for number in range(2)]
    report = ov.analyze(ranks)
    assert [trace.rank for trace in report.traces] == [0, 1]
    jobs: tuple[Source | list[Source], ...] = (RANKS, f"{RANKS}/rank*.json.gz", [RANKS / "rank0.json.gz", ranks[1]])
    for job in jobs:
        assert ov.analyze(job) == report
        assert ov.check(job) == ov.check(ranks)
    assert ov.diff(RANKS, [RANKS / "rank0.json.gz", RANKS / "rank1.json.gz"]) == ov.diff(ranks, ranks)


def test_one_prediction_is_of_one_trace() -> None:
    with pytest.raises(UsageError, match="is a directory; name one trace in it"):
        ov.whatif(RANKS)


@pytest.mark.parametrize("call", [ov.analyze, ov.whatif, ov.check, ov.show, lambda path: ov.diff(path, path)])
def test_a_missing_file_is_reported_as_missing(call: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match=r"gone\.json"):
        call(tmp_path / "gone.json")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: ov.analyze(PAGEABLE, device=7), "there is no device 7; devices that did anything: 0"),
        (lambda: ov.analyze(PAGEABLE, step="ProfilerStep#99"), "there is no step 99; steps: "),
        (lambda: ov.analyze(PAGEABLE, range="forward"), "there is no range 'forward'"),
        (lambda: ov.whatif(PAGEABLE, device=7), "there is no device 7; devices that did anything: 0"),
        (lambda: ov.whatif(PAGEABLE, ["no-sync nothing"]), "there is no blocking call 'nothing'"),
    ],
)
def test_what_a_trace_does_not_have_is_reported_with_what_it_has(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(NotInTrace) as refused:
        ask()
    assert message in str(refused.value) and PAGEABLE.name in str(refused.value)
    assert not isinstance(refused.value, KeyError)
