"""Properties that hold for every file:

Only errors of our own, possible figures, exact sums, no pass without evidence.

Every trace is read twice, with the compiled scanner and without, and a sweep computes its figures again. A report is
made and checked for a share of the files (`REPORTED`) and for all whose answer is certain, and views are made for fewer
(`VIEWED`), since each costs as much as reading and analyzing several files.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
from msgspec.structs import replace
from rich.cells import cell_len

from overlapscope import timeline as lanes
from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.figures import Period
from overlapscope.analysis.results import Device, TraceResult
from overlapscope.base.saved import encode
from overlapscope.budgets import config
from overlapscope.budgets import document as check_document
from overlapscope.budgets.check import check
from overlapscope.budgets.settings import Settings
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult
from overlapscope.catalog.causes import IdleCause
from overlapscope.commands import main
from overlapscope.compare import document as diff_document
from overlapscope.compare.diff import diff
from overlapscope.contracts.compare import changes, compare
from overlapscope.contracts.model import from_toml, to_toml
from overlapscope.contracts.observe import observe
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.export import chrome_trace
from overlapscope.inputs import read_baseline, read_report
from overlapscope.prediction import is_replayed_by_default
from overlapscope.prediction.document import document as whatif_document
from overlapscope.prediction.predict import predict
from overlapscope.ranks.document import TERMINAL
from overlapscope.ranks.document import document as ranks_document
from overlapscope.ranks.join import report_on
from overlapscope.ranks.reduced import reduce
from overlapscope.ranks.result import Unreadable
from overlapscope.reading import _scan, _stream, files, kineto, load, parts
from overlapscope.reading._events import Batch
from overlapscope.reading.cache import Cache
from overlapscope.reading.cache_folder import Folder
from overlapscope.reading.source import ReadRequest
from overlapscope.render import markdown, terminal
from overlapscope.report.document import document
from overlapscope.report.model import Report, build, from_json
from overlapscope.report.page import Page
from overlapscope.trace.model import Trace, TraceTable
from tests.fuzz import sweep
from tests.fuzz.corpus import OriginalTrace, few, origins, report_of, trace_of
from tests.fuzz.mutators import BOMB, COPIES_LOST, LIMIT_BYTES, OTHER, PREDICTED, SAVED, SETTINGS, FuzzCase
from tests.fuzz.other_files import spoil

PACKAGE = str(Path(lanes.__file__).parents[1])
REPORTED, VIEWED = 0.25, 0.02
"""Shares of the files to report on and check, and to draw or predict something of."""
WIDTH = 100
WINDOWS = 6
"""Maximum number of steps and ranges of a device to sweep; all are added up."""
ABOUT_COPIES = frozenset(
    {
        *("blocking-copy", "same-stream", "late-prefetch", "one-way-copies", "pageable-memory", "pin-in-loop"),
        *("slow-link", "tiny-copies", "hidden_copy_pct", "exposed_copy_pct", "exposed_copy_time", "copy_time"),
        *("copy_bandwidth", "efficiency_pct"),
    }
)
"""Budgets and rules whose subject is copies."""
INTERVENTIONS: tuple[list[str], ...] = (
    *(["pin"], ["side-stream"], ["non-blocking"], ["batch-copies"], ["two-way"], ["prefetch"], ["graph"], []),
    *(["faster-loader"], ["no-sync cudaDeviceSynchronize"], ["no-sync cudaStreamSynchronize"], ["pin", "side-stream"]),
)
_SIGNED = frozenset(
    {"start_ns", "end_ns", "gain_ns", "clock_offset_ns", "value", "low", "high"}
    | {"slowed_low_ns", "slowed_ns", "slowed_high_ns", "saved_low_ns", "saved_ns", "saved_high_ns"}
)
"""Times that may be negative: points in time, gains, and costs."""
_ANY_PERCENTAGE = frozenset({"gain_pct", "step_error_pct"})
_NEARLY_ALL = 0.95
"""Share of the window."""
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Wrong(Exception):
    """Something does not hold; the first argument names what, for all files alike."""


class Defect(msgspec.Struct, frozen=True):
    """A defect that a file showed."""

    kind: str
    """Text that is equal for findings of the same cause, as far as possible."""
    detail: str


def examine(case: FuzzCase, path: Path) -> Iterator[Defect]:
    """Everything that is found with the case's file, which lies at the path."""
    # Not the stream that made the file, whose first numbers chose its kind.
    rng = random.Random(f"oracle {case.seed}")
    defects: list[Defect] = []

    def tried(what: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except OverlapscopeError as error:
            if not str(error).strip():
                defects.append(Defect(f"{what}: an error that says nothing", repr(error)))
        except Wrong as error:
            defects.append(Defect(f"{what}: {error.args[0]}", " ".join(map(str, error.args))))
        except (Exception, SystemExit) as error:
            defects.append(Defect(f"{what}: {_place(error)}", traceback.format_exc(limit=-8)))
        return None

    if SETTINGS in case.tells:
        tried("settings", lambda: _settings_that_are_no_file(case, path))
        yield from defects
        return
    if OTHER in case.tells:
        tried(f"{case.suffix[1:]} file", lambda: _of_other_source(rng, case, path))
        yield from defects
        return
    if SAVED in case.tells:
        tried("read baseline", lambda: _against(path))
        report = tried("read report", lambda: read_report([path], limit_bytes=LIMIT_BYTES, cache=False))
        if report is not None:
            for what, work in _of_saved(report, drawn=rng.random() < 0.1):
                tried(what, work)
        yield from defects
        return
    if rng.random() < VIEWED / 4:
        tried("check command", lambda: _command(case, path))
    trace = tried("load", lambda: _read_twice(path, files.LIMIT_BYTES if BOMB in case.how else LIMIT_BYTES))
    if trace is not None:
        for what, work in _stages(case, rng, trace, tried):
            tried(what, work)
    yield from defects


Tried = Callable[[str, Callable[[], Any]], Any]


def _stages(case: FuzzCase, rng: random.Random, trace: Trace, tried: Tried) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Checks of a readable trace: cheap ones always, others now and then."""
    analysis = tried("analyze", lambda: analyze_trace(trace))
    if analysis is None:
        return
    yield "figures", lambda: _figures(trace, analysis)
    viewed = rng.random() < VIEWED
    if not (viewed or case.tells or rng.random() < REPORTED):
        return
    measured = tried("report", lambda: build([analysis], replayed=False))
    if measured is None:
        return
    yield "report", lambda: _report(measured)
    judged = tried("check", lambda: _check(case, trace, measured))
    if not viewed:
        return
    yield "again", lambda: _again(trace, measured)
    if judged is not None:
        yield "check text", lambda: _shown(terminal.render(check_document.log(judged), width=WIDTH))
    views: dict[str, Callable[[], Any]] = {
        "analyze command": lambda: _drawn(rng, analysis),
        "part": lambda: _narrowed(rng, trace, analysis),
        "diff": lambda: _diff(rng, case.origin, measured),
        "whatif": lambda: _whatif(rng, trace) if is_replayed_by_default(trace) else None,
        "contract": lambda: _contract(trace),
        "ranks": lambda: _ranks(case.origin, trace),
        "timeline": lambda: lanes.build(analysis),
        "html": lambda: _html(analysis),
    }
    [view] = rng.choices(list(views), (8, 8, 8, 8, 8, 3, 3, 1))
    yield view, views[view]


def _read_twice(path: Path, limit_bytes: int) -> Trace:
    """Return the trace as the compiled scanner reads it, and check that Python reads the same."""
    taken: list[bool] = []
    scan = _scan.scanner()

    def watched(array: memoryview) -> Batch | None:
        batch = scan(array)
        taken.append(batch is not None)
        return batch

    with patch.object(_stream, "scanner", lambda: watched):
        trace = kineto.read(path, limit_bytes=limit_bytes, progress=False)
    if any(taken):
        with patch.object(_stream, "scanner", lambda: lambda array: None):
            other = kineto.read(path, limit_bytes=limit_bytes, progress=False)
        for name in Trace.__struct_fields__:
            _must(_equal(getattr(trace, name), getattr(other, name)), f"{name} is not what Python reads")
    return trace


def _equal(left: Any, right: Any) -> bool:
    """Return whether two fields of a Trace are the same, types of columns included."""
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and bool(np.array_equal(left, right))
    if isinstance(left, TraceTable):
        return all(_equal(getattr(left, name), getattr(right, name)) for name in left.__struct_fields__)
    return bool(left == right)


def _again(trace: Trace, report: Report) -> None:
    """Check that the same trace has the same report when it is analyzed again."""
    other = build([analyze_trace(replace(trace))], replayed=False)
    _must(encode(other) == encode(report), "the same trace has another report")


def _place(error: BaseException) -> str:
    """Return the error's type and where in the package it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(PACKAGE)]
    if not ours:
        return type(error).__name__
    return f"{type(error).__name__} in {ours[-1].filename.removeprefix(PACKAGE)[1:]} {ours[-1].name}"


def _must(holds: object, what: str, *details: object) -> None:
    if not holds:
        raise Wrong(what, *details)


# -- figures


def _figures(trace: Trace, analysis: TraceAnalysis) -> None:
    for device in analysis.result.devices:
        edges = sweep.edges(trace.gpu_ops, device.device)
        swept: list[Device | Period] = [device, *(device.steps[:WINDOWS]), *(device.ranges[:WINDOWS])]
        if device.judged is not None:
            swept.append(device.judged)
        windows = [(period.window.start_ns, period.window.end_ns) for period in swept]
        for period, expected in zip(swept, sweep.lengths(edges, windows), strict=True):
            _must(period.span_ns == period.window.end_ns - period.window.start_ns, "span is not the window's length")
            _as_swept(period, expected)
        _must(windows[0] == _extent(trace, device.device), "window is not first start to last end", windows[0])
        for period in (*device.steps, *device.ranges):
            _adds_up(period)
        if device.outside is not None and device.judged is not None:
            inside_ns = sum(step.span_ns for step in device.steps)
            whole_ns = device.outside.before_ns + inside_ns + device.outside.after_ns + (device.outside.between_ns or 0)
            _must(whole_ns == device.judged.span_ns, "steps and the time outside them don't add up", whole_ns)
        _device(device)


def _extent(trace: Trace, device: int) -> tuple[int, int]:
    ops = trace.gpu_ops
    mine = [row for row, number in enumerate(ops.device.tolist()) if number == device]
    return min(int(ops.start_ns[row]) for row in mine), max(int(ops.end_ns[row]) for row in mine)


def _as_swept(figures: Device | Period, expected: dict[str, int]) -> None:
    for group in (figures.buckets, figures.engines, figures.overlap):
        for name, value in msgspec.structs.asdict(group).items():
            if name in expected:
                _must(value == expected[name], f"{name} is not what a sweep says", value, expected[name])
    overlap, serial = figures.overlap, sum(expected[name] for name in ("sm_ns", "h2d_ns", "d2h_ns"))
    ideal = max(expected[name] for name in ("sm_ns", "h2d_ns", "d2h_ns"))
    hidden = expected["copy_ns"] - expected["exposed_copy_ns"]
    _must(overlap.serial_ns == serial and overlap.ideal_ns == ideal, "serial or ideal is not what a sweep says")
    _must(overlap.hidden_copy_ns == hidden, "hidden_copy_ns is not what a sweep says", overlap.hidden_copy_ns, hidden)
    for percentage, part, whole in (
        (overlap.efficiency_pct, serial - expected["busy_ns"], serial - ideal),
        (overlap.hidden_copy_pct, hidden, expected["copy_ns"]),
        (overlap.comm_compute_pct, expected["both_comm"], expected["comm_ns"]),
    ):
        _must(percentage == (100 * part / whole if whole else None), "percentage is not what a sweep says", percentage)
    _adds_up(figures)


def _adds_up(figures: Device | Period) -> None:
    buckets = figures.buckets
    _must(sum(msgspec.structs.asdict(buckets).values()) == figures.span_ns, "buckets do not add up to the span")
    _must(
        sum(figures.exposed_copy_by_cause.values()) == buckets.exposed_copy_ns, "causes of exposed copy do not add up"
    )
    _must(
        sum(figures.exposed_comm_by_cause.values()) == buckets.exposed_comm_ns, "causes of exposed comm do not add up"
    )
    _must(sum(figures.idle_by_cause.values()) == buckets.idle_ns, "causes of idle do not add up")


def _narrowed(rng: random.Random, trace: Trace, analysis: TraceAnalysis) -> None:
    """One step or range alone, whose figures are sums over its occurrences."""
    names = [
        *(("step", step.name) for device in analysis.result.devices for step in device.steps),
        *(("range", named_range.name) for device in analysis.result.devices for named_range in device.ranges),
    ]
    if not names:
        return
    kind, name = rng.choice(names)
    part = analyze_trace(trace, step=name) if kind == "step" else analyze_trace(trace, range=name)
    for device in part.devices:
        windows = list(zip(device.windows.starts.tolist(), device.windows.ends.tolist(), strict=True))
        swept = sweep.lengths(sweep.edges(trace.gpu_ops, device.result.device), windows)
        _must(device.result.span_ns == sum(end - start for start, end in windows), "a part's span is not its windows'")
        _as_swept(device.result, {key: sum(period[key] for period in swept) for key in swept[0]})
    report = build([part], scope=name)
    _report(report)
    _shown(terminal.render(document(Page(report, scope=name)), width=WIDTH))


def _device(device: Device) -> None:
    for group in device.copies:
        _must(0 <= group.exposed_ns <= group.time_ns <= device.span_ns, "copies longer than the window", group)
        _must(len(group.by_step.count) == len(device.steps), "copies by step are not one per step")
    for net in device.net_overlap:
        whole_ns = net.judged_ns + sum(net.unjudged_by_cause.values())
        _must(whole_ns == net.overlapped_ns, "judged and unjudged overlap do not add up", net)
        if net.slowed_low_ns is not None and net.slowed_ns is not None and net.slowed_high_ns is not None:
            _must(net.slowed_low_ns <= net.slowed_ns <= net.slowed_high_ns, "an estimate outside its interval", net)
    for stream in device.streams:
        _must(stream.compute_ns <= device.engines.compute_ns, "a stream computes more than the device", stream)
    _must(device.main_stream in {stream.stream for stream in device.streams}, "the main stream is no stream")
    judged = device.judged
    if device.lead_in_ns is not None:
        rest = judged.span_ns if judged is not None else 0
        _must(device.lead_in_ns + rest == device.span_ns, "lead-in and judged time do not add up")
    for stall in device.host_stalls:
        _must(stall.idle_caused_ns <= device.buckets.idle_ns, "a stall causes more idle time than there is", stall)


def _possible(value: Any, name: str = "") -> None:
    """Check all output for programs: every figure is a number, none is negative, none beyond 100%."""
    if isinstance(value, str):
        # Output must be text.
        value.encode("utf-8")
    elif isinstance(value, dict):
        for key, item in value.items():
            if item is not None and item is not True and item is not False:
                _possible(item, _named_inside(key, name))
    elif isinstance(value, list | tuple):
        for item in value:
            _possible(item, name)
    elif isinstance(value, float | int) and not isinstance(value, bool):
        _must(math.isfinite(value), "a figure that is no number", name, value)
        lowest, highest = _limits(name)
        _must(lowest <= value <= highest, f"{name} outside {lowest} to {highest}", value)


_UNITS = ("_ns", "_pct", "bytes", "gb_per_s", "count", "_by_cause", "ops")


@cache
def _limits(name: str) -> tuple[float, float]:
    """Return the smallest and the largest possible figure of a name."""
    if name in _SIGNED or name in _ANY_PERCENTAGE or not name.endswith(_UNITS):
        return -math.inf, math.inf
    return 0, 100 if name.endswith("_pct") else math.inf


@lru_cache(1 << 14)
def _named_inside(key: Any, name: str) -> str:
    """Return the name that decides a value's limits: its key if that has a unit, otherwise the surrounding name."""
    if isinstance(key, str) and (key.endswith(_UNITS) or key in _SIGNED):
        return key
    return "of_cause_ns" if name.endswith("_by_cause") else name if name.endswith("_pct") else ""


def _report(report: Report) -> None:
    _possible(msgspec.to_builtins(report))
    data = encode(report)
    _must(from_json(data) == report, "the JSON report reads back as another")
    json.loads(data, parse_constant=_no_constant)
    devices = {(trace.source, device.device): device for trace in report.traces for device in trace.devices}
    for finding in report.findings:
        device = devices[finding.source, finding.device]
        # A finding may be about the program without the profiler, whose steps may be longer.
        span = max(device.span_ns, finding.steps * device.plain.step_ns if device.plain is not None else 0)
        _must(finding.cost_ns <= span, f"a cost of {finding.rule} is above the span", finding.cost_ns, span)
        if (saving := finding.saving) is not None:
            _must(
                saving.saved_low_ns <= saving.saved_ns <= saving.saved_high_ns, "a saving outside its interval", saving
            )
    for device in report.devices:
        plain = device.plain
        if (alone := device.alone) is not None:
            _must(plain is None, "a step without the profiler is both known and an interval", alone)
            frame = device.per_step or device.judged or device
            busy_ns = frame.span_ns - frame.buckets.idle_ns
            _must(busy_ns <= alone.low_ns <= alone.high_ns == frame.span_ns, "an impossible interval of a step", alone)
        if plain is None:
            continue
        _must(plain.low_ns <= plain.step_ns <= plain.high_ns, "the plain step is outside its interval", plain.step_ns)
        if plain.buckets is not None:
            whole = sum(msgspec.structs.asdict(plain.buckets).values())
            _must(whole == plain.step_ns, "plain buckets do not add up to the step", whole, plain.step_ns)
            by_cause = plain.idle_by_cause, plain.exposed_copy_by_cause, plain.exposed_comm_by_cause
            causes = tuple(sum(times.values()) for times in by_cause)
            stated = plain.buckets.idle_ns, plain.buckets.exposed_copy_ns, plain.buckets.exposed_comm_ns
            _must(causes == stated, "plain causes do not add up", causes, stated)
        if plain.program is not None:
            _adds_up(plain.program)


def _no_constant(constant: str) -> None:
    raise Wrong("JSON with a constant that it does not have", constant)


# -- budgets


@cache
def _settings() -> tuple[Settings, ...]:
    """Check budgets that almost nothing can exceed, where a pass must rest on data, and narrow ones."""
    narrow = {"efficiency_pct": {"min": 60}, "exposed_copy_pct": {"max": 10}, "step_time": {"max": "300 us"}}
    narrow |= {"idle_pct": {"max": 50, "scope": "window"}}
    asked = {
        "efficiency_pct": {"min": 0},
        "hidden_copy_pct": {"min": 0},
        "exposed_copy_pct": {"max": 100},
        "exposed_copy_time": {"max": "1000 s"},
        "copy_bandwidth": {"min": "0 GB/s"},
        "step_time": {"max": "1000 s", "scope": "window"},
        "idle_pct": {"max": 100, "scope": "window"},
    }
    rules = sorted(copy_check for copy_check in ABOUT_COPIES if "-" in copy_check)
    forbidding = config.from_mapping({"budgets": asked, "forbid": rules}, "settings")
    return Settings(), forbidding, config.from_mapping({"budgets": narrow}, "settings")


def _check(case: FuzzCase, trace: Trace, report: Report) -> CheckResult:
    result = report.traces[0]
    _must(
        PREDICTED not in case.tells or trace.predicted_by is not None, "a predicted timeline is taken for a recording"
    )
    if trace.predicted_by is not None:
        _refused(report)
    for settings in _settings():
        judged = check(_as_recorded(report), settings)
        passed = judged.outcome == "pass"
        _must(
            not passed or all(verdict.status == "pass" for verdict in judged.verdicts),
            "passes though one is not passed",
        )
        _must(not (passed and result.trust.verdict == "unusable"), "an unusable trace passes")
        _must(not (passed and trace.damage.truncated), "a trace that was cut passes")
        for device in result.devices:
            swallowed = device.lead_in_ns is not None and device.lead_in_ns > _NEARLY_ALL * device.span_ns
            _must(not (passed and swallowed and not device.steps), "passes though nearly all is lead-in", device.device)
        if COPIES_LOST in case.tells:
            for budget_verdict in judged.verdicts:
                about = budget_verdict.metric in ABOUT_COPIES and budget_verdict.status == "pass"
                _must(
                    not about,
                    f"{budget_verdict.budget} passes though copies were lost",
                    budget_verdict.message,
                    case.how,
                )
        for verdict in judged.verdicts:
            _verdict(verdict, result)
        json.loads(encode(judged), parse_constant=_no_constant)
    return judged


def _verdict(verdict: BudgetVerdict, result: TraceResult) -> None:
    """Check that the value is the report's, and that the status follows from value and limit."""
    value, limit = verdict.value, verdict.limit
    if value is None:
        return
    _must(math.isfinite(value), "a verdict's value is no number", verdict)
    for device in result.devices:
        # The plain program is judged instead of the recording if its step time is certain.
        if verdict.metric != "idle_pct" or device.device != verdict.subject.device or device.plain is not None:
            continue
        whole = device.judged or device
        # While ops are missing, the device may not have been idle.
        idle_ns = whole.buckets.idle_ns - whole.idle_by_cause.get(IdleCause.MISSING_OPS, 0)
        stated = 100 * idle_ns / whole.span_ns
        _must(math.isclose(value, stated), "a verdict's value is not the report's", verdict, stated)
    if limit is not None and verdict.status in ("pass", "fail"):
        holds = value >= limit if verdict.more_is_better else value <= limit
        _must(holds == (verdict.status == "pass"), "a verdict contradicts its value", verdict)


def _as_recorded(report: Report) -> Report:
    """Return the report without the marks of predictions, which are never judged."""
    return replace(report, traces=tuple(replace(trace, predicted_by=None) for trace in report.traces))


def _refused(report: Report) -> None:
    try:
        check(report)
    except UsageError:
        return
    raise Wrong("a predicted timeline is judged")


def _command(case: FuzzCase, path: Path) -> None:
    """Check that exit codes are the documented ones, and that wrong input gives a message."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(["check", str(path), "--no-cache", "--max-size", str(LIMIT_BYTES)])
    _must(code in (0, 1, 2, 3), "an exit code that check does not have", code, err.getvalue()[-2000:])
    _must(code == 2 or out.getvalue(), "check says nothing", code)
    _must(code != 2 or err.getvalue(), "wrong input is not told", code)
    _must(code != 0 or not {COPIES_LOST, PREDICTED} & case.tells, "an untrusted file passes", out.getvalue())


def _settings_that_are_no_file(case: FuzzCase, path: Path) -> None:
    """Check that unreadable settings are an error, whatever kind of file has their name."""
    [kind] = case.how
    with TemporaryDirectory() as folder:
        settings = Path(folder) / "overlapscope.toml"
        if kind == "directory":
            settings.mkdir()
        elif kind == "pipe":
            os.mkfifo(settings)
        else:
            settings.symlink_to("/dev/zero" if kind == "device" else Path(folder) / "none")
        # A pipe that is named may get its writer later.
        named = ["--config", str(settings)] if kind != "pipe" and case.seed % 2 else []
        with contextlib.chdir(folder), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as err:
            code = main(["check", str(path), "--no-cache", *named])
    _must(code == 2 and err.getvalue(), "settings that are not a file are passed over", code, kind)


def _of_other_source(rng: random.Random, case: FuzzCase, path: Path) -> None:
    """Check a database or recording of another source like a trace, and settings and histories."""
    if case.suffix == ".toml":
        json.loads(encode(check(report_of(origins()[0]), config.read(path))), parse_constant=_no_constant)
        return
    if case.suffix == ".history":
        _history_shown(path)
        return
    if case.suffix == ".cached":
        _cached(rng, path)
        return
    drawn = rng.random() < 0.2
    for part in parts(path):
        with suppress(OverlapscopeError):
            trace = load(part, limit_bytes=LIMIT_BYTES, cache=False, progress=False)
            analysis = analyze_trace(trace)
            if analysis.result.devices:
                _figures(trace, analysis)
            report = build([analysis], replayed=False)
            _report(report)
            if drawn:
                _shown(terminal.render(document(Page(report)), width=WIDTH))


def _cached(rng: random.Random, path: Path) -> None:
    """Check that a trace is as if freshly read, whatever the cache holds under its name."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for number, text in enumerate((path.read_bytes(), few()[rng.randrange(len(few()))].text)):
            (folder / f"{number}.json").write_bytes(text)
        cache = Cache(Folder(folder / "cache"), 1 << 30, least_bytes=0, settled_ns=0)
        request = ReadRequest(progress=False)
        fresh = [kineto.read(folder / f"{number}.json", progress=False) for number in (0, 1)]
        for number in (0, 1):
            cache.load(folder / f"{number}.json", request)
        spoil(rng, cache.folder.path)
        for number in (0, 1, 0):
            again = cache.load(folder / f"{number}.json", request)
            for field in Trace.__struct_fields__:
                same = _equal(getattr(again, field), getattr(fresh[number], field))
                _must(same, f"{field} is not what the file has, but what the cache has")


def _history_shown(path: Path) -> None:
    """Check that a history that may have been edited is shown, or refused in a sentence."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(["history", "--history", str(path)])
    _must((code, bool(err.getvalue())) in ((0, False), (2, True)), "an exit code that history does not have", code)
    _shown(out.getvalue() + err.getvalue(), width=1 << 20)


# -- what was saved

_RELATIVE = {"step_time": {"max_increase": "5%"}, "efficiency_pct": {"max_decrease": "5%"}}


def _against(path: Path) -> None:
    """Check a baseline, or another file in its place, that may have been edited."""
    baseline = read_baseline(path, limit_bytes=LIMIT_BYTES, cache=False)
    for settings in (config.from_mapping({"budgets": _RELATIVE}, "settings"), Settings()):
        judged = check(report_of(origins()[0]), settings, baseline=baseline)
        json.loads(encode(judged), parse_constant=_no_constant)
        _shown(terminal.render(check_document.log(judged), width=WIDTH))


def _of_saved(report: Report, drawn: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Check a report that may have been edited: it fails only with our own errors."""
    yield "report again", lambda: json.loads(encode(report), parse_constant=_no_constant)
    yield (
        "check of a report",
        lambda: [check(_as_recorded(report), settings) for settings in _settings()],
    )
    if not drawn:
        return
    yield "page of a report", lambda: _shown(terminal.render(document(Page(report, verbose=True)), width=WIDTH))
    yield (
        "diff of a report",
        lambda: _shown(terminal.render(diff_document.document(diff(report, report_of(origins()[0]))), width=WIDTH)),
    )


# -- views


def _shown(text: str, width: int = WIDTH) -> None:
    """Nothing in it controls a terminal, and it is as wide as was asked."""
    match = _CONTROL.search(text)
    _must(
        match is None, "text that controls the terminal", text[match.start() - 40 : match.end() + 20] if match else ""
    )
    widest = max(text.splitlines(), key=len, default="")
    _must(cell_len(widest) <= width, "text wider than the terminal", widest)


def _drawn(rng: random.Random, analysis: TraceAnalysis) -> None:
    # A user who passes a step or asks for a prediction waits for it, however many lanes there are.
    told_ns = rng.choice((None, None, None, 1, 1_000_000, 1 << 62)) if is_replayed_by_default(analysis.trace) else None
    report = build([analysis], plain_step_ns=told_ns)
    _report(report)
    page = Page(report, verbose=True)
    _shown(terminal.render(document(page), width=WIDTH))
    markdown.render(document(page)).encode("utf-8", "strict")


def _html(analysis: TraceAnalysis) -> None:
    from overlapscope.render import html
    from overlapscope.timeline.file import document as file_document

    drawn = html.render(file_document(Page(build([analysis])), [lanes.build(analysis)]))
    _must("<script>alert" not in drawn and "<img src=x" not in drawn, "a name that is taken for HTML")


def _diff(rng: random.Random, origin: OriginalTrace, report: Report) -> None:
    sides = (report_of(origin), report)
    difference = diff(*(sides if rng.random() < 0.5 else sides[::-1]))
    json.loads(encode(difference), parse_constant=_no_constant)
    for device in difference.devices:
        figures = device.figures
        for whole, pieces in (
            (figures.span, figures.buckets),
            (_named(figures.buckets, "exposed copy"), figures.exposed_copy_by_cause),
            (_named(figures.buckets, "exposed comm"), figures.exposed_comm_by_cause),
            (_named(figures.buckets, "idle"), figures.idle_by_cause),
        ):
            for side in ("before", "after"):
                added, stated = sum(getattr(piece, side) for piece in pieces), getattr(whole, side)
                _must(
                    math.isclose(added, stated, rel_tol=1e-9, abs_tol=1), "a diff's parts do not add up", added, stated
                )
    _shown(terminal.render(diff_document.document(difference), width=WIDTH))


def _named(changes: Any, name: str) -> Any:
    return next(change for change in changes if change.name == name)


def _whatif(rng: random.Random, trace: Trace) -> None:
    asked = rng.choice(INTERVENTIONS)
    predicted = predict(trace, asked)
    result = predicted.result
    _possible(msgspec.to_builtins(result))
    step = result.predicted_step_ns
    if step is not None:
        _must(0 <= step.low <= step.value <= step.high, "a predicted step outside its interval", step)
    for name, figure in result.buckets.items():
        side = figure.predicted
        _must(0 <= side.low <= side.value <= side.high, f"{name} outside its interval", side)
    _shown(terminal.render(whatif_document(result), width=WIDTH))
    if predicted.after is not None:
        _figures(predicted.after, analysis := analyze_trace(predicted.after))
        _report(report := build([analysis], replayed=False))
        _refused(report)
        json.loads(b"".join(chrome_trace.blocks(predicted.after, packed=False)), parse_constant=_no_constant)


def _contract(trace: Trace) -> None:
    """Check that a contract reads back as written, and that its own recording loses nothing."""
    contract = observe(trace)
    _possible(msgspec.to_builtins(contract))
    text = to_toml(contract)
    _must(from_toml(text, "contract") == contract, "a contract reads back differently")
    _must(_CONTROL.search(text) is None, "a contract that controls the terminal")
    promises = compare(contract, contract)
    _shown(terminal.render(changes(promises), width=WIDTH))
    results = [promise.result for promise in promises]
    _must("lost" not in results and "gained" not in results, "a contract that its own recording breaks", results)


def _ranks(origin: OriginalTrace, trace: Trace) -> None:
    joined: list[Any] = []
    for number, lanes_trace in enumerate((trace, trace_of(origin))):
        outcome = reduce(replace(lanes_trace, rank=number if trace.rank is None else lanes_trace.rank))
        joined += (outcome,) if isinstance(outcome, Unreadable) else outcome
    report = report_on(joined)
    _possible(msgspec.to_builtins(report))
    json.loads(encode(report), parse_constant=_no_constant)
    _shown(terminal.render(ranks_document(report, TERMINAL), width=WIDTH))
