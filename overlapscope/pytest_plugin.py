"""The pytest plugin: a marker that holds a test to budgets of overlap, a fixture that records, and `assert_overlap`.

    @pytest.mark.overlap(min_efficiency="80%", max_exposed_copy="3 ms", forbid=["pageable-memory"])
    def test_the_loader_prefetches(overlap_profile):
        with overlap_profile as recording:
            for batch in loader:
                train(batch)
                recording.step()

Every pytest run of everyone who has overlapscope installed imports this, so all that costs anything, torch and numpy
first, is imported where it is used. Budgets are judged by `overlapscope.budgets.check`, as `overlapscope check` does.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pytest

from overlapscope.errors import ConfigError, MissingPackage, OverlapscopeError, UsageError

if TYPE_CHECKING:
    from overlapscope.budgets.settings import Settings
    from overlapscope.recorder.recording import Recording
    from overlapscope.report.model import Report
    from overlapscope.trace.model import Trace

__all__ = ["OverlapProfile", "assert_overlap", "overlap"]

_MARKER, _FIXTURE = "overlap", "overlap_profile"
_LONGEST_NAME = 120
_PROFILE: pytest.StashKey[OverlapProfile] = pytest.StashKey()
"""Profile of a test's fixture."""


_METRICS = {
    "min_efficiency": ("efficiency_pct", None),
    "min_hidden_copy": ("hidden_copy_pct", None),
    "max_exposed_copy": ("exposed_copy_time", "exposed_copy_pct"),
    "max_exposed_comm": ("exposed_comm_time", "exposed_comm_pct"),
    "max_idle": ("idle_time", "idle_pct"),
    "max_host_stall": ("host_stall_time", None),
    "max_step_time": ("step_time", None),
    "min_copy_bandwidth": ("copy_bandwidth", None),
}
"""Metric that each keyword of the marker limits, and the metric of a limit in percent."""


def overlap(
    *,
    min_efficiency: str | float | None = None,
    min_hidden_copy: str | float | None = None,
    max_exposed_copy: str | None = None,
    max_exposed_comm: str | None = None,
    max_idle: str | None = None,
    max_host_stall: str | None = None,
    max_step_time: str | None = None,
    min_copy_bandwidth: str | None = None,
    forbid: Sequence[str] | None = None,
    skip_steps: int = 0,
    aggregate: str = "mean",
    range: str | None = None,
    scope: str = "steps",
    allow_missing: bool = False,
    contract: str | os.PathLike[str] | None = None,
) -> Settings:
    """Fail the test if the recording of `overlap_profile` breaks one of these limits, or cannot be judged.

    Limits have units: "80%", "3 ms", "40 GB/s". `max_exposed_copy`, `max_exposed_comm` and `max_idle` are times of a
    step, or percentages: of the time in which copies or collectives run, and of the step. `forbid` lists rules
    (`overlapscope explain`). Without a limit and `forbid` the rules are forbidden that `overlapscope check` forbids.

    Each limit holds for the `aggregate` of the steps (mean, median, worst or a percentile such as p90), without the
    first `skip_steps`; with `range` for the ranges whose name matches that pattern instead; with `scope="window"` for
    the whole recording. `allow_missing` passes limits that cannot be judged. `contract` is a file of `overlapscope
    contract write`, which is judged besides.

    Markers on the test, its class and its module are combined; where two give the same argument, the nearer one wins.

    Returns:
        The limits, as settings of a check.

    Raises:
        ConfigError: A limit makes no sense, or there is none for the range or scope.
    """
    limits = {name: limit for name, limit in locals().items() if name in _METRICS}
    from overlapscope.base.words import listed
    from overlapscope.budgets.config import from_mapping

    keys: dict[str, str | None] = {"range": range, "scope": None if scope == "steps" else scope}
    narrowed = {key: value for key, value in keys.items() if value is not None}
    given = {_metric(name, limit): (name, limit) for name, limit in limits.items() if limit is not None}
    budgets = {metric: {argument[:3]: limit, **narrowed} for metric, (argument, limit) in given.items()}
    if narrowed and not budgets:
        raise ConfigError(f"{_MARKER}: {listed(narrowed)} says where a limit applies, but there is no limit.")
    content = {"budgets": budgets, "skip_steps": skip_steps, "aggregate": aggregate}
    content["forbid"] = list(forbid) if isinstance(forbid, tuple) else forbid
    content |= {"allow_missing": allow_missing, "contract": None if contract is None else os.fspath(contract)}
    # Errors name the marker's argument for each metric.
    names: dict[tuple[str, ...], str] = {
        ("budgets", metric, key): argument if key == argument[:3] else key
        for metric, (argument, _) in given.items()
        for key in budgets[metric]
    }
    return from_mapping(content, _MARKER, names=names)


def _metric(argument: str, limit: str | float) -> str:
    """Return the metric that a keyword limits. Raises ConfigError with the keyword."""
    from overlapscope.budgets.quantity import is_share, parse
    from overlapscope.catalog.measures import METRICS

    metric, share = _METRICS[argument]
    chosen = share if share is not None and is_share(limit) else metric
    try:
        parse(limit, METRICS[chosen].unit, or_share=share is not None)
    except ConfigError as error:
        raise ConfigError(f"{_MARKER}: {argument}: {error}.") from None
    return chosen


def assert_overlap(trace: Report | Trace | str | os.PathLike[str], **limits: Any) -> None:
    """Assert that a recording breaks no limit and can be judged.

    Args:
        trace: A Trace, a Report (`overlapscope.analyze` makes one of several traces), or a path: of a trace, a
            directory of ranks or a JSON report.
        **limits: The keywords of the marker, `overlap`.

    Raises:
        AssertionError: A limit is broken or cannot be judged; the text explains why.
        UsageError: The keywords make no sense.
        UnreadableTrace: There is no trace to read.
    """
    __tracebackhide__ = True
    from overlapscope.api import report_of

    passed, text = _check(trace, _settings(limits, "assert_overlap"), report_of)
    if not passed:
        raise AssertionError(text)


class OverlapProfile:
    """The value of the fixture `overlap_profile`: each `with` block is recorded into a separate trace.

        with overlap_profile as recording:
            ...
            recording.step()

    `recording` is an `overlapscope.record`: its `step()` marks the end of a step, as `overlapscope.step()` does from
    anywhere. The first step is warm-up, which is not judged.
    """

    def __init__(self, test: pytest.Item, stem: Path, *, stacks: bool = False) -> None:
        """Prepare to record. `stem` is the path of the first trace without its ending; the marker of `test` judges."""
        self._stem = stem
        self._stacks = stacks
        self.recordings: list[Recording] = []
        """Recordings, in order."""
        self.report_of: Callable[[Path], Report] = cache(_read)
        """Returns the report of a trace, which is made once. Raises UnreadableTrace."""
        test.stash[_PROFILE] = self

    def __enter__(self) -> Recording:
        from overlapscope.recorder.options import Options
        from overlapscope.recorder.recording import SilentRecording

        number = len(self.recordings) + 1
        name = self._stem.name if number == 1 else f"{self._stem.name}-{number}"
        recording = SilentRecording(self._stem.with_name(f"{name}.trace.json.gz"), Options(stacks=self._stacks))
        recording.begin()
        self.recordings.append(recording)
        return recording

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.recordings[-1].__exit__(kind, error, traceback)

    @property
    def path(self) -> Path:
        """Latest trace. Raises UsageError if nothing was recorded."""
        if not self.recordings:
            raise UsageError(f"nothing was recorded: enter the fixture with `with {_FIXTURE} as recording:`.")
        return self.recordings[-1].path

    @property
    def report(self) -> Report:
        """Report of the latest trace. Raises UsageError if nothing was recorded, and UnreadableTrace."""
        return self.report_of(self.path)


def _read(path: Path) -> Report:
    from overlapscope.inputs import read_report

    return read_report([path])


@pytest.fixture
def overlap_profile(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OverlapProfile]:
    """Record the block of `with overlap_profile as recording:`, in which `recording.step()` ends a step."""
    reason = _why_not_here()
    if reason is not None:
        if request.config.getoption("overlap_require"):
            pytest.fail(f"{reason} (--overlap-require)", pytrace=False)
        pytest.skip(reason)
    directory: Path | None = request.config.getoption("overlap_dir")
    if directory is None:
        directory = tmp_path_factory.mktemp("overlap")
    else:
        directory = directory.absolute()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            pytest.fail(f"--overlap-dir {directory}: cannot be created ({error.strerror or error}).", pytrace=False)
    profile = OverlapProfile(
        request.node, directory / _file_name(request.node.nodeid), stacks=request.config.getoption("overlap_stacks")
    )
    yield profile
    # An open recording would prevent that of the next test.
    for recording in profile.recordings:
        recording.end()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all of which begin with `--overlap-`."""
    group = parser.getgroup("overlap", "overlap of copies and compute (overlapscope)")
    group.addoption(
        "--overlap-require", action="store_true", help="fail instead of skipping tests if there is no CUDA device"
    )
    group.addoption(
        "--overlap-dir",
        metavar="DIR",
        type=Path,
        help="directory for the traces (default: pytest's temporary directory)",
    )
    group.addoption(
        "--overlap-stacks",
        action="store_true",
        help="record Python stacks (slows the host down, so do not judge times with it)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, with the help of its function."""
    signature = inspect.signature(overlap)
    bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    arguments = signature.replace(parameters=bare, return_annotation=signature.empty)
    config.addinivalue_line("markers", f"{_MARKER}{arguments}: {inspect.getdoc(overlap)}\n")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Check the arguments of markers when tests are collected."""
    try:
        _settings_of(metafunc.definition)
    except UsageError as error:
        raise pytest.Collector.CollectError(f"{metafunc.definition.nodeid}: {error}") from None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Set up the fixture first, which skips the test before another fixture fails without a GPU."""
    names: list[str] = getattr(item, "fixturenames", [])
    if _FIXTURE in names[1:]:
        names.remove(_FIXTURE)
        names.insert(0, _FIXTURE)


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Judge the recording after the test's body has passed. A failure here is a failure of the test."""
    try:
        failure = _judged(item)
    except OverlapscopeError as error:
        from overlapscope.base.words import clean

        failure = clean(str(error))
    if failure is not None:
        pytest.fail(failure, pytrace=False)


def _judged(item: pytest.Item) -> str | None:
    """Return the text of a failure; None if the test passes. Raises OverlapscopeError if it cannot be judged."""
    settings = _settings_of(item)
    if settings is None:
        return None
    from overlapscope.base.words import clean

    profile = item.stash.get(_PROFILE, None)
    if profile is None or not profile.recordings:
        raise UsageError(
            f"marked with {_MARKER}, but nothing was recorded: take the fixture {_FIXTURE}, and run what is to be "
            f"judged inside `with {_FIXTURE} as recording:`."
        )
    verdicts, texts = [], []
    for recording in profile.recordings:
        recording.end()  # One that a fixture keeps open around the test.
        passed, text = _check(recording.path, settings, profile.report_of)
        verdicts.append(passed)
        look = f"The recording: overlapscope dashboard {shlex.quote(str(recording.path))}"
        texts.append("\n".join((text, *map(clean, recording.notes), clean(look))))
    whole = "\n\n".join(texts)
    if not all(verdicts):
        return whole
    item.add_report_section("call", _MARKER, whole)
    return None


def _settings_of(node: pytest.Item) -> Settings | None:
    """Return the combined arguments of a test's markers; None without a marker. Raises UsageError."""
    limits: dict[str, Any] = {}
    marked = False
    for marker in reversed(list(node.iter_markers(_MARKER))):
        marked = True
        if marker.args:
            raise UsageError(f'{_MARKER}: takes keywords only, as in {_MARKER}(min_efficiency="80%").')
        limits |= marker.kwargs
    return _settings(limits, _MARKER) if marked else None


def _settings(limits: Mapping[str, Any], whose: str) -> Settings:
    """Raise UsageError for a keyword that `overlap` does not have."""
    from overlapscope.base.words import did_you_mean

    keywords = inspect.signature(overlap).parameters
    for name in limits:
        if name not in keywords:
            raise UsageError(
                f"{whose}: there is no keyword {name!r}{did_you_mean(name, keywords)}; keywords: {', '.join(keywords)}."
            )
    return overlap(**limits)


def _check(
    trace: Report | Trace | str | os.PathLike[str], settings: Settings, report_of: Callable[[Any], Report]
) -> tuple[bool, str]:
    """Return whether a recording passes, and the text that `overlapscope check` prints."""
    from overlapscope.base.words import clean
    from overlapscope.budgets.document import log
    from overlapscope.contracts.judge import check_job
    from overlapscope.inputs import recordings_of
    from overlapscope.render.terminal import render

    result = check_job(settings, lambda: recordings_of(trace), lambda: report_of(trace))
    return result.outcome == "pass", "\n".join((render(log(result)).strip(), *map(clean, result.warnings)))


def _why_not_here() -> str | None:
    """Return why nothing can be recorded here; None if it can. This imports torch."""
    from overlapscope.recorder.imports import require_torch

    try:
        require_torch()
    except MissingPackage as missing:
        return str(missing)
    import torch

    return None if torch.cuda.is_available() else "needs a CUDA device, and torch sees none"


def _file_name(nodeid: str) -> str:
    """Return a unique name for a test's trace: `tests-test_loader.py-test_prefetch`."""
    if re.fullmatch(r"[\w/]+\.py(::\w+)+", nodeid, re.ASCII) and len(nodeid) <= _LONGEST_NAME:
        return re.sub("/|::", "-", nodeid)
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", nodeid)[:_LONGEST_NAME].strip("-.")
    return f"{name}-{hashlib.sha256(nodeid.encode(errors='surrogatepass')).hexdigest()[:8]}"
