"""Fixtures shared by all tests with torch."""

import gc
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.base import clock as real_clock
from tests.support.fake_clock import FakeClock
from tests.support.pytest_runs import PAGEABLE, PREFETCHING, REPLAYS
from tests.support.recorded import nothing_left_running


@pytest.fixture(scope="module", autouse=True)
def _no_objects_of_other_tests_are_looked_through() -> None:
    """Keep recordings from searching the objects of other tests for open ranges: there are soon millions, and each
    search would take a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """Return the clock of recordings in this process."""
    fake = FakeClock()
    monkeypatch.setattr(real_clock, "now_ns", fake)
    return fake


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path of a trace to record."""
    return tmp_path / "x.trace.json.gz"


@pytest.fixture
def nothing_is_left_running() -> Iterator[None]:
    """Fail a test that leaves a recording or a profiler under way."""
    with nothing_left_running():
        yield


# -- of the pytest plugin's tests


@pytest.fixture(scope="module")
def everything_is_loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import modules before the tests: a run inside a test forgets those that it loaded first, and numpy cannot be
    loaded again."""
    from overlapscope.pytest_plugin import assert_overlap

    assert_overlap(PREFETCHING, min_efficiency="80%")
    with pytest.raises(AssertionError):
        assert_overlap(PAGEABLE)
    if importlib.util.find_spec("torch") is not None:
        with ov.record(tmp_path_factory.mktemp("once") / "x.trace.json.gz"):
            pass


@pytest.fixture
def not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """With these variables, pytest prints failures twice, the second time in its summary."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def replays(pytester: pytest.Pytester) -> None:
    """Replace recordings by stored ones."""
    pytest.importorskip("torch", reason="records with torch")
    pytester.makeconftest(REPLAYS)
