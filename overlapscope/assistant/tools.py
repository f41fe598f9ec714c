"""What an assistant can ask. Each tool answers with one page of JSON; their docstrings are what the assistant reads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec.structs import replace
from pydantic import Field

from overlapscope.analysis.results import Device, Period, Plain, TraceResult
from overlapscope.assistant.answers import answer
from overlapscope.assistant.folders import Folders
from overlapscope.base.words import did_you_mean, listed
from overlapscope.catalog.interventions import INTERVENTIONS
from overlapscope.errors import NotInTrace, UsageError
from overlapscope.inputs import read_baseline, read_report
from overlapscope.query.rows import QueriedTraces
from overlapscope.query.tables import OF, TABLES, unit_of
from overlapscope.reading import load
from overlapscope.reading.files import file_and_part, kind_of
from overlapscope.report.model import Report, build
from overlapscope.report.page import Page
from overlapscope.report.verdict import judge
from overlapscope.rules import RULES

if TYPE_CHECKING:
    from overlapscope.query.engine import Answer

_KEPT: Final = 4
"""Traces that are read and analysed once while they do not change."""
_MOST_TRACES: Final = 64
"""Read together; `ranks` takes more, one after the other."""
_FEW: Final = 8
"""Of what is named in one item."""
_TIMEOUT_S: Final = 20.0
_MOST_ROWS: Final = 10_000
"""Of a statement; who needs more asks for less."""
_IN_SPAN: Final = """
SELECT start_ns, end_ns, kind AS what, name, stream, bytes, NULL AS cause, op FROM gpu_ops
WHERE device = {device} AND end_ns > {start} AND start_ns < {end}
UNION ALL SELECT start_ns, end_ns, 'exposed-copy', NULL, NULL, NULL, cause, op FROM exposed_pieces
WHERE device = {device} AND end_ns > {start} AND start_ns < {end}
UNION ALL SELECT start_ns, end_ns, 'idle', call, NULL, NULL, cause, op FROM idle_pieces
WHERE device = {device} AND end_ns > {start} AND start_ns < {end}
ORDER BY start_ns, end_ns, what, stream
"""
_WIDTH: Final = 100
"""Of explanations, in characters."""
_RECORDED: Final = OF["recorded"]
_NO_PLAIN: Final = (
    "What a step takes without the profiler is not known: the recorder did not time it, and this recording does not "
    "let it be estimated. Pass plain_step_ns if you know it."
)
_SPOKEN: Final = OF["spoken"]

Trace = Annotated[str, Field(description="name of a trace, as list_traces gives it")]
Job_ = Annotated[str, Field(description="name of a trace, of a directory with the traces of a job, or of a report")]
PageNumber = Annotated[int, Field(description="page of the answer, from 1")]
PlainStep = Annotated[
    int | None, Field(description="what a step takes without the profiler, where the user measured it", gt=0)
]
Ordinal = Annotated[int | None, Field(description="ordinal of the GPU; needed where there are several")]


class Tools(msgspec.Struct, frozen=True):
    """All of them, for some directories."""

    folders: Folders

    def list_traces(self, page: PageNumber = 1) -> str:
        """List the files that can be asked about: traces, reports, baselines and histories."""
        items = [{"path": name, "kind": kind, "bytes": size} for name, kind, size in self.folders.listing()]
        head = {"directories": [str(root) for root in self.folders.roots]}
        return answer(head, items, figures="none", called="files", page=page)

    def open_trace(self, path: Trace, page: PageNumber = 1) -> str:
        """What was recorded: the program that recorded, GPUs, ranks, steps, streams, and whether it can be trusted."""
        [trace] = self._job(path).report.traces
        head = {
            "rank": trace.rank,
            "environment": trace.environment,
            "trust": trace.trust.verdict,
            "predicted_by": trace.predicted_by,
        }
        devices = [_opened(device) for device in trace.devices]
        return answer(head, devices, figures=_RECORDED, unknown=_in_doubt(trace), called="devices", page=page)

    def verdict(
        self,
        path: Job_,
        device: Annotated[int | None, Field(description="ordinal of one GPU; default: all")] = None,
        plain_step_ns: PlainStep = None,
        page: PageNumber = 1,
    ) -> str:
        """Does data move while the GPU computes, and if not, why: for each GPU the verdict, the five buckets (they add
        up to span_ns), overlap, causes (they add up to their bucket), and what a step takes without the profiler.
        """
        report = self._report(path, plain_step_ns)
        sections = [
            section
            for section in Page(report).sections()
            if device is None or (section.device is not None and section.device.device == device)
        ]
        if not sections:
            raise NotInTrace(f"{path}: has no device {device}.")
        items = []
        for section in sections:
            verdict = judge(section)
            said = {"rank": section.trace.rank, "level": verdict.level, "verdict": verdict.text}
            plain = verdict.plain.replace("--plain-step", "plain_step_ns")
            doubts = {"plain": plain, "steps": verdict.steps, "doubt": verdict.doubt}
            found = {} if section.device is None else _figures(section.device)
            items.append({**said, **{name: text for name, text in doubts.items() if text}, **found})
        figures = "of the recording under recorded, of a step without the profiler under plain_step"
        return answer({}, items, figures=figures, unknown=_doubts(report, device), called="verdicts", page=page)

    def findings(
        self,
        path: Job_,
        rule: Annotated[str | None, Field(description="only findings of this rule")] = None,
        plain_step_ns: PlainStep = None,
        page: PageNumber = 1,
    ) -> str:
        """What costs time and what to change, the costliest first: evidence, advice, saving and place in the code."""
        if rule is not None and rule not in RULES:
            raise UsageError(f"there is no rule {rule!r}{did_you_mean(rule, RULES)}; rules: {', '.join(RULES)}.")
        report = self._report(path, plain_step_ns)
        items = [
            {
                "rule": one.rule,
                "severity": one.severity,
                **({} if one.rank is None else {"rank": one.rank}),
                "device": one.device,
                "cost_ns": one.cost_ns,
                "cost_from": one.cost_from,
                "figures": "recorded" if one.plain_bound_ns is None else "plain",
                "title": one.title,
                "detail": one.detail,
                "advice": one.advice,
                "fix": one.fix,
                "where": one.where,
                "example": one.example,
                **({"doubt": one.doubt} if one.doubt else {}),
            }
            for one in report.findings
            if rule in (None, one.rule)
        ]
        head = {"cost_ns": "saved by the fix over all that was recorded: by replay, or at most (bound); do not add up"}
        return answer(head, items, figures=_SPOKEN, unknown=_doubts(report), called="findings", page=page)

    def explain(
        self,
        word: Annotated[str, Field(description="a rule, cause, metric, bucket, trust check or change")],
        page: PageNumber = 1,
    ) -> str:
        """What a word in an answer means, how it is computed, and how it is fixed. `words` lists all words."""
        from overlapscope import glossary
        from overlapscope.render import terminal

        if word.strip().lower() == "words":
            items: list[Any] = [f"{entry.word} ({entry.kind}): {entry.summary}" for entry in glossary.entries()]
            return answer({}, items, figures="none", called="words", page=page)
        text = terminal.render(glossary.explain(word), width=_WIDTH)
        return answer({}, text.strip().split("\n\n"), figures="none", called="text", page=page)

    def timeline(
        self,
        path: Trace,
        step: Annotated[str | None, Field(description="name of a step, as `steps` of open_trace")] = None,
        start_ns: Annotated[int | None, Field(description="begin of the span, as times in answers")] = None,
        end_ns: Annotated[int | None, Field(description="end of the span")] = None,
        device: Ordinal = None,
        page: PageNumber = 1,
    ) -> str:
        """Everything that ran on a GPU in a step or span, and each piece of exposed copy and idle time with its cause,
        in order. Give `step`, or `start_ns` and `end_ns`.
        """
        job = self._job(path)
        found = _device_of(job.report, path, device)
        begin, end = _span(found, step, start_ns, end_ns)
        asked, rows = _ask(job, _IN_SPAN.format(device=found.device, start=begin, end=end))
        head = {"device": found.device, "start_ns": begin, "end_ns": end}
        return answer(
            head,
            [dict(zip(asked.rows.column_names, row, strict=True)) for row in rows],
            figures=_RECORDED,
            unknown=_doubts(job.report),
            called="pieces",
            page=page,
        )

    def query(
        self,
        path: Job_,
        sql: Annotated[str, Field(description="one SELECT statement in DuckDB's dialect, over the tables of `tables`")],
        page: PageNumber = 1,
    ) -> str:
        """Ask SQL of a trace, or of all traces in a directory, for what the other tools do not say. Aggregate in SQL,
        and use LIMIT. The tool `tables` lists tables and columns.
        """
        job = self._jobs(path)
        asked, rows = _ask(job, sql)
        figures = "; ".join(f"{name}: {asked.figures_of(name)}" for name in asked.tables) or "none"
        columns = [{"name": name, "unit_by_name": unit_of(name)} for name in asked.rows.column_names]
        head = {"columns": columns, "rows": asked.row_count}
        unknown = list(asked.doubts())
        if len(rows) < asked.row_count:
            unknown.append(f"Only the first {len(rows):,} rows are kept; use LIMIT, or aggregate.")
        return answer(head, rows, figures=figures, unknown=unknown, called="values", page=page)

    def tables(
        self,
        table: Annotated[str | None, Field(description="a table, whose columns are listed")] = None,
        page: PageNumber = 1,
    ) -> str:
        """The tables of `query`; of one table the columns, with their units and meanings."""
        if table is None:
            items = [{"table": one.name, "a_row_is": one.rows, "figures": one.figures} for one in TABLES.values()]
            return answer({}, items, figures="as each table says", called="tables", page=page)
        if table not in TABLES:
            raise UsageError(f"there is no table {table!r}; tables: {', '.join(TABLES)}.")
        of = TABLES[table]
        columns = [f"{one.name} ({one.type}): {one.meaning}" for one in of.columns]
        return answer(
            {"table": of.name, "a_row_is": of.rows}, columns, figures=OF[of.figures], called="columns", page=page
        )

    def whatif(
        self,
        path: Trace,
        changes: Annotated[
            list[str] | None,
            Field(
                description=f"of {', '.join(INTERVENTIONS)}, some with an argument, as in 'no-sync "
                "cudaStreamSynchronize'; leave out to find those that save most"
            ),
        ] = None,
        device: Annotated[int | None, Field(description="ordinal of the GPU; default: the busiest")] = None,
        plain_step_ns: PlainStep = None,
        page: PageNumber = 1,
    ) -> str:
        """What a step would take with some changes, predicted by replaying the trace, as an interval. Without changes,
        it finds those that save most, one after the other.
        """
        from overlapscope.prediction import best, predict
        from overlapscope.prediction.interventions import check_names

        [trace] = self._job(path).traces
        if changes:
            check_names(trace, changes)
            result = predict(trace, changes, device=device, plain_step_ns=plain_step_ns).result
        else:
            result = best(trace, device=device, plain_step_ns=plain_step_ns).result
        head = {
            "device": result.device,
            "step_ns": result.unchanged_step_ns,
            "predicted_step_ns": result.predicted_step_ns,
            "gain_ns": result.gain_ns,
            "gain_pct": result.gain_pct,
            "ladder": [
                {"added": rung.added, "predicted_step_ns": rung.predicted_step_ns, "gain_ns": rung.gain_ns}
                for rung in result.ladder
            ],
            "buckets": {name: figure.predicted.value for name, figure in result.buckets.items()},
        }
        items: list[Any] = [
            {"change": one.intervention, "what": one.what, "how": one.advice} for one in result.interventions
        ]
        items += [{"assumption": one.text, "cost_ns": one.cost_ns} for one in result.assumptions if one.shown]
        figures = "a prediction, low to high, for a step " + (
            "of the recording" if result.plain is None else f"without the profiler ({result.plain.origin})"
        )
        return answer(head, items, figures=figures, unknown=result.replay.reasons, called="changes", page=page)

    def diff(self, before: Job_, after: Job_, page: PageNumber = 1) -> str:
        """What changed from one recording of a program to another, by how much, and what is more than noise."""
        from overlapscope.compare.diff import diff

        result = diff(self._compared(before), self._compared(after))
        items: list[Any] = []
        for device in result.devices:
            of = {} if device.rank is None else {"rank": device.rank}
            of |= {"device": device.device}
            figures = device.figures
            groups = (
                [figures.span],
                *(figures.buckets, figures.overlap, figures.exposed_copy_by_cause, figures.idle_by_cause),
            )
            items.append({**of, "verdict": device.verdict, "over": device.basis})
            items += [
                {**of, **_without(one, {"noise_floor": None})}
                for group in groups
                for one in group
                if one.before or one.after
            ]
            items += [
                {**of, "finding": one.rule, "standing": one.standing, "cost_ns": one.cost.after}
                for one in device.findings
                if one.standing != "same"
            ]
        figures_of = "of a step without the profiler" if result.of == "plain" else "of the recordings"
        doubts = [doubt.detail for doubt in result.doubts]
        return answer(
            {"verdict": result.verdict}, items, figures=figures_of, unknown=doubts, called="changes", page=page
        )

    def check(
        self,
        path: Job_,
        budgets: Annotated[
            list[str] | None,
            Field(
                description="such as 'efficiency_pct >= 80%', or 'step_time increase <= 5%' with a baseline; leave out "
                "to fail where copies do not overlap with compute"
            ),
        ] = None,
        baseline: Annotated[str | None, Field(description="a trace, report or baseline to compare with")] = None,
        page: PageNumber = 1,
    ) -> str:
        """Hold a recording to budgets, as in CI: pass, fail or inconclusive, with values, limits and reasons."""
        from overlapscope.budgets.baseline import of
        from overlapscope.budgets.check import check
        from overlapscope.budgets.config import expression
        from overlapscope.budgets.settings import Settings

        settings = replace(Settings(), budgets=tuple(map(expression, budgets or ())))
        past = None
        if baseline is not None:
            place = self.folders.path(baseline)
            if place.is_dir():
                past = of(self._compared(baseline), ranges=settings.compared_ranges)
            else:
                past = read_baseline(place, ranges=settings.compared_ranges, cache=False)
        result = check(self._compared(path), settings, baseline=past)
        items = [
            {
                **{name: getattr(one, name) for name in ("budget", "status", "value", "limit", "unit", "message")},
                "subject": _without(one.subject, {"source": ...}),
                "reasons": [{"time_ns": why.time_ns, "title": why.title} for why in one.reasons[:_FEW]],
            }
            for one in result.verdicts
        ]
        head = {"outcome": result.outcome, "summary": result.summary, "exit_code": result.exit_code}
        figures = _RECORDED if result.program is None else OF["plain"]
        return answer(head, items, figures=figures, unknown=result.warnings, called="verdicts", page=page)

    def ranks(
        self, path: Annotated[str, Field(description="directory with a trace of each rank")], page: PageNumber = 1
    ) -> str:
        """Which rank delays the others, and how each rank spends its time."""
        from overlapscope.ranks.engine import reduce_all
        from overlapscope.ranks.files import expand_urls
        from overlapscope.ranks.join import Joined
        from overlapscope.ranks.reduced import Unreadable

        joined = Joined()
        for location in expand_urls(self.folders.files(path)):
            for outcome in reduce_all([location]):
                for one in [outcome] if isinstance(outcome, Unreadable) else outcome:
                    joined.add(one)
        result = joined.report()
        straggler = result.straggler
        head = {
            "straggler": None
            if straggler is None
            else _without(straggler, {"worst": ..., "collectives": ..., "source": ..., "waiting": ...}),
            "clocks": result.clocks,
            "missing_count": len(result.missing),
            "missing": result.missing[:_FEW],
        }
        less = {"source": ..., "step_spans_ns": ..., "device_name": ..., "doubts": (), "doubt_ids": ...}
        rows = [_without(row, less) for row in result.ranks]
        unknown = [*(f"{one.source}: {one.reason}" for one in result.unreadable), *result.notes]
        return answer(head, rows, figures=_RECORDED, unknown=unknown, called="ranks", page=page)

    def history(
        self,
        path: Annotated[str, Field(description="file of a history (overlapscope history --history FILE)")],
        metric: Annotated[str | None, Field(description="such as efficiency_pct, step_time, idle_time")] = None,
        job: Annotated[str | None, Field(description="default: the job that ran last")] = None,
        page: PageNumber = 1,
    ) -> str:
        """Since which commit or hour a figure of a job is better or worse: its levels, and the changes between."""
        from overlapscope.history.course import DEFAULT, courses
        from overlapscope.history.store import Query, Store

        with Store.open(self.folders.path(path), read_only=True, traceless=True) as store:
            found = courses(store, Query(job=job), DEFAULT if metric is None else (metric,), "report")
        items: list[Any] = []
        for course in found.courses:
            groups = course.levels.groups
            of = {"metric": course.metric, "unit": course.unit, "figures": "plain" if course.plain else "recorded"}
            items += [
                {**of, **_without(level, {}), "reports": level.end - level.first, **_since(groups[level.first])}
                for level in course.levels.levels
            ]
            items += [{**of, "change": _without(one, {}), **_since(groups[one.first])} for one in course.levels.changes]
        unknown = [f"{one.metric}: {one.levels.unknown}." for one in found.courses if one.levels.unknown]
        head = {"job": found.job}
        return answer(head, items, figures="as each item says", unknown=unknown, called="levels", page=page)

    # -- what is read ---------------------------------------------------------------------------------

    def _job(self, path: str) -> QueriedTraces:
        """One trace. Raises UsageError for a directory, and what reading raises."""
        files = self.folders.files(path)
        if len(files) != 1:
            names = listed(map(self.folders.name, files), 20)
            raise UsageError(f"{path}: holds {len(files):,} traces; name one of them: {names}.")
        return _read((_version(files[0]),))

    def _jobs(self, path: str) -> QueriedTraces:
        """All traces of a directory, or one. Raises UsageError for very many, and what reading raises."""
        files = self.folders.files(path)
        if len(files) > _MOST_TRACES:
            raise UsageError(
                f"{path}: holds {len(files):,} traces, and at most {_MOST_TRACES} are read together; name one of them, "
                "or compare them with ranks."
            )
        return _read(tuple(map(_version, files)))

    def _report(self, path: str, plain_step_ns: int | None = None) -> Report:
        """As `overlapscope analyze` makes it, or wrote it."""
        saved = self._saved(path)
        if saved is None:
            job = self._jobs(path)
            return job.report if plain_step_ns is None else build(job.analyses, plain_step_ns=plain_step_ns)
        if plain_step_ns is not None:
            raise UsageError("plain_step_ns needs a trace, but this is a report.")
        return saved

    def _compared(self, path: str) -> Report:
        """As `diff` and `check` make it: nobody asks what fixes save."""
        return self._saved(path) or build(self._jobs(path).analyses, replayed=False)

    def _saved(self, path: str) -> Report | None:
        """What one of our commands wrote; None where it is a trace."""
        place = self.folders.path(path)
        return read_report([place], cache=False) if place.is_file() and kind_of(place) else None


# -- traces -----------------------------------------------------------------------------------------

_Version = tuple[Path, int, int, int]
"""A file, which one it is, when it was changed, and its bytes."""


def _version(path: Path) -> _Version:
    status = file_and_part(path)[0].stat()
    return path, status.st_ino, status.st_ctime_ns, status.st_size


@lru_cache(_KEPT)
def _read(versions: tuple[_Version, ...]) -> QueriedTraces:
    return QueriedTraces(tuple(load(path, progress=False, cache=False) for path, *_ in versions))


def _ask(job: QueriedTraces, sql: str) -> tuple[Answer, list[tuple[Any, ...]]]:
    """What the statement gave, and its first rows."""
    from overlapscope.query.engine import ask
    from overlapscope.query.written import values

    found = ask(job, sql, most_rows=_MOST_ROWS, timeout_s=_TIMEOUT_S)
    return found, list(values(found))


# -- shapes -----------------------------------------------------------------------------------------


def _in_doubt(trace: TraceResult) -> Iterator[str]:
    yield from (f"{check.id}: {check.detail}" for check in trace.trust.checks if check.status != "ok")
    if trace.predicted_by is not None:
        yield "This is a timeline that whatif predicted, not a recording."


def _doubts(report: Report, device: int | None = None) -> list[str]:
    """Of the traces of one device, or of all."""
    traces = [trace for trace in report.traces if device is None or device in {one.device for one in trace.devices}]
    said = [
        f"rank {trace.rank}, {sentence}" if len(report.traces) > 1 and trace.rank is not None else sentence
        for trace in traces
        for sentence in _in_doubt(trace)
    ]
    if any(one.plain is None for trace in traces for one in trace.devices):
        said.append(_NO_PLAIN)
    return [*said, *report.notes]


def _opened(device: Device) -> dict[str, Any]:
    return {
        "device": device.device,
        "name": device.name,
        "start_ns": device.window.start_ns,
        "end_ns": device.window.end_ns,
        "span_ns": device.span_ns,
        "lead_in_ns": device.lead_in_ns,
        "main_stream": device.main_stream,
        "streams": [stream.stream for stream in device.streams],
        "step_count": len(device.steps),
        "steps": [_place(step) for step in device.steps[:_FEW]],
        "ranges": [_place(period) for period in device.ranges[:_FEW]],
    }


def _place(period: Period) -> dict[str, Any]:
    return {"name": period.name, "start_ns": period.window.start_ns, "end_ns": period.window.end_ns}


def _figures(device: Device) -> dict[str, Any]:
    plain = device.plain
    return {
        "device": device.device,
        "name": device.name,
        "recorded": {
            "span_ns": device.span_ns,
            **msgspec.structs.asdict(device.buckets),
            "hidden_copy_pct": device.overlap.hidden_copy_pct,
            "efficiency_pct": device.overlap.efficiency_pct,
            "exposed_copy_by_cause": _some(device.exposed_copy_by_cause),
            "idle_by_cause": _some(device.idle_by_cause),
        },
        "plain_step": None if plain is None else _plain(plain),
    }


def _plain(plain: Plain) -> dict[str, Any]:
    told = {name: getattr(plain, name) for name in ("step_ns", "low_ns", "high_ns", "origin", "recorded_step_ns")}
    if plain.buckets is None:
        return told
    causes = {
        "exposed_copy_by_cause": _some(plain.exposed_copy_by_cause),
        "idle_by_cause": _some(plain.idle_by_cause),
    }
    return {**told, **msgspec.structs.asdict(plain.buckets), **causes}


def _some(by_cause: dict[str, int]) -> dict[str, int]:
    return dict(sorted(((cause, ns) for cause, ns in by_cause.items() if ns), key=lambda item: -item[1]))


def _without(value: Any, less: dict[str, Any]) -> dict[str, Any]:
    """A record as JSON has it, without some fields: those that are what is given, or whatever they are (`...`)."""
    fields: dict[str, Any] = msgspec.to_builtins(value)
    return {name: one for name, one in fields.items() if name not in less or less[name] not in (..., one)}


def _since(group: Any) -> dict[str, Any]:
    return {"since_ns": group.at_ns, "commit": group.commit}


def _device_of(report: Report, path: str, ordinal: int | None) -> Device:
    devices = [one for trace in report.traces for one in trace.devices if ordinal in (None, one.device)]
    if len(devices) == 1:
        return devices[0]
    if not devices:
        raise NotInTrace(f"{path}: has no {'GPU activity' if ordinal is None else f'device {ordinal}'}.")
    raise UsageError(f"{path}: has several devices ({', '.join(str(one.device) for one in devices)}); name one.")


def _span(device: Device, step: str | None, start_ns: int | None, end_ns: int | None) -> tuple[int, int]:
    if step is not None:
        for period in (*device.steps, *device.ranges):
            if period.name == step:
                return period.window.start_ns, period.window.end_ns
        raise NotInTrace(f"device {device.device} has no step {step!r}; open_trace lists the first ones.")
    if start_ns is None or end_ns is None or end_ns <= start_ns:
        raise UsageError("give step, or start_ns and a larger end_ns.")
    return start_ns, end_ns
