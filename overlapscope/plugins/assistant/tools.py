"""Tools for assistants. Each returns a page of JSON. Assistants read the tools' docstrings."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec.structs import replace
from pydantic import Field

from overlapscope.base import registry
from overlapscope.base.words import did_you_mean, listed
from overlapscope.catalog.interventions import INTERVENTIONS
from overlapscope.errors import NotInTrace, UsageError
from overlapscope.inputs import read_baseline, read_report
from overlapscope.plugin import plugins
from overlapscope.plugins.assistant.answers import (
    MAX_NAMES,
    answer,
    doubts_about,
    doubts_about_trace,
    measured_figures,
    opened,
    without,
)
from overlapscope.plugins.assistant.folders import Folders
from overlapscope.reading import load
from overlapscope.reading.file_names import file_and_part
from overlapscope.reading.files import kind_of
from overlapscope.report.model import Report, build
from overlapscope.report.page import DeviceReport, Page
from overlapscope.report.tables import findings_note
from overlapscope.report.verdict import judge
from overlapscope.rules import RULES
from overlapscope.rules.finding import Finding
from overlapscope.tools import QueriedTraces

_CACHED_TRACES: Final = 4
"""Number of analyzed traces, or sets of traces, to keep while their files don't change."""
_MAX_TRACES: Final = 64
"""Maximum number of traces to read together. `ranks` reads any number in turn."""
_EXPLANATION_WIDTH: Final = 100
"""Width of explanations, in characters."""
_RECORDED: Final = "of the recording"
_PLAIN: Final = "of a step without the profiler"
_SPOKEN: Final = "of the program without the profiler where its step is known, else of the recording"

Trace = Annotated[str, Field(description="name of a trace, as list_traces gives it")]
Job_ = Annotated[str, Field(description="name of a trace, of a directory with the traces of a job, or of a report")]
PageNumber = Annotated[int, Field(description="page of the answer, from 1")]
PlainStep = Annotated[int | None, Field(description="step time without the profiler, if the user measured it", gt=0)]


class Tools(msgspec.Struct, frozen=True):
    """Tools for some directories, and the `overlapscope.tools.Server` that tools of plugins work with."""

    folders: Folders

    def all(self) -> tuple[Callable[..., str], ...]:
        """Return the tools from here, then those of plugins."""
        built_in = (
            *(self.list_traces, self.open_trace, self.verdict, self.findings, self.explain),
            *(self.whatif, self.diff, self.check, self.ranks),
        )
        return (
            *built_in,
            *(tool for plugin in plugins() if plugin.tools for tool in registry.load(plugin.tools)(self)),
        )

    def list_traces(self, page: PageNumber = 1) -> str:
        """List the files to ask about: traces, reports, baselines and histories."""
        items = [{"path": name, "kind": kind, "bytes": size} for name, kind, size in self.folders.listing()]
        head = {"directories": [str(root) for root in self.folders.roots]}
        return answer(head, items, figures="none", called="files", page=page)

    def open_trace(self, path: Trace, page: PageNumber = 1) -> str:
        """Describe a recording: recorder, GPUs, rank, steps, streams, and whether it can be trusted."""
        [trace] = self.trace(path).report.traces
        head = {
            "rank": trace.rank,
            "environment": trace.environment,
            "trust": trace.trust.verdict,
            "predicted_by": trace.predicted_by,
        }
        devices = [opened(device) for device in trace.devices]
        return answer(head, devices, figures=_RECORDED, unknown=doubts_about_trace(trace), called="devices", page=page)

    def verdict(
        self,
        path: Job_,
        device: Annotated[int | None, Field(description="ordinal of one GPU; default: all")] = None,
        plain_step_ns: PlainStep = None,
        page: PageNumber = 1,
    ) -> str:
        """State whether data moves while the GPU computes, and if not, why: for each GPU the verdict and, of an average
        step, the five buckets (they add up to span_ns), overlap and causes (they add up to their bucket). Totals of the
        whole recording are under recorded_window.
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
            result: dict[str, Any] = {
                "rank": section.trace.rank,
                "level": verdict.level,
                "verdict": f"{verdict.subject}: {verdict.answer}",
            }
            names = ("plain", "steps", "overlap_cost", "doubt")
            result |= {name: text for name in names if (text := getattr(verdict, name))}
            items.append(result | ({} if section.device is None else measured_figures(section, section.device)))
        figures = "as per_step says; of the recording under recorded_window"
        return answer({}, items, figures=figures, unknown=doubts_about(report, device), called="verdicts", page=page)

    def findings(
        self,
        path: Job_,
        rule: Annotated[str | None, Field(description="only findings of this rule")] = None,
        plain_step_ns: PlainStep = None,
        page: PageNumber = 1,
    ) -> str:
        """List what costs time, the costliest first, with evidence, what to change, and place in the code."""
        if rule is not None and rule not in RULES:
            raise UsageError(f"there is no rule {rule!r}{did_you_mean(rule, RULES)}; rules: {', '.join(RULES)}.")
        report = self._report(path, plain_step_ns)
        parts = {(part.trace.source, part.device.device): part for part in Page(report).sections() if part.device}
        items = [
            {
                "rule": finding.rule,
                "severity": finding.severity,
                **({} if finding.rank is None else {"rank": finding.rank}),
                "device": finding.device,
                "costs_ns": finding.mean_cost_ns,
                "figures": "plain" if parts[finding.source, finding.device].is_plain else "recorded",
                "saves_ns": _saves(parts[finding.source, finding.device], finding),
                "title": finding.title,
                "detail": finding.detail,
                "advice": finding.advice.splitlines(),
                "fix": finding.saving.fix if finding.saving else (),
                "where": finding.where,
                "example": finding.example,
                **({"doubt": finding.doubt} if finding.doubt else {}),
            }
            for finding in report.findings
            if rule in (None, finding.rule)
        ]
        head = {
            "saves_ns": "what the fix saves of an average step (of the recording, without steps), by replay, and its "
            "interval; null if unknown, and then at most the cost; do not add up"
        }
        unknown = [*doubts_about(report), *filter(None, [findings_note(report.traces, report.findings)])]
        return answer(head, items, figures=_SPOKEN, unknown=unknown, called="findings", page=page)

    def explain(
        self,
        word: Annotated[str, Field(description="a rule, cause, metric, bucket, trust check or change")],
        page: PageNumber = 1,
    ) -> str:
        """Explain a word in an answer: its meaning, its computation, and the fix. `words` lists all words."""
        from overlapscope import glossary
        from overlapscope.render import terminal

        if word.strip().lower() == "words":
            items: list[Any] = [f"{entry.word} ({entry.kind}): {entry.summary}" for entry in glossary.entries()]
            return answer({}, items, figures="none", called="words", page=page)
        text = terminal.render(glossary.explain(word), width=_EXPLANATION_WIDTH)
        return answer({}, text.strip().splitlines(), figures="none", called="text", page=page)

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
        """Predict the step time with some changes, as an interval, by replaying the trace. Without changes, find those
        that save most, one after another.
        """
        from overlapscope.prediction.document import if_wrong, unit
        from overlapscope.prediction.interventions import check_names
        from overlapscope.prediction.predict import best, predict

        [trace] = self.trace(path).traces
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
            {"change": each.text, "what": f"In the recording: {each.what}", "how": each.advice.splitlines()}
            for each in result.interventions
        ]
        items += [
            {"assumption": each.text, "of": each.intervention, "if_wrong": if_wrong(each, unit(result))}
            for each in result.assumptions
        ]
        figures = "a prediction, low to high, for a step " + (
            "of the recording" if result.plain is None else f"without the profiler ({result.plain.origin})"
        )
        return answer(head, items, figures=figures, unknown=result.replay.reasons, called="changes", page=page)

    def diff(self, before: Job_, after: Job_, page: PageNumber = 1) -> str:
        """Compare two recordings of a program: what changed, by how much, and what is more than noise."""
        from overlapscope.compare.diff import diff

        result = diff(self._compared(before), self._compared(after))
        items: list[Any] = []
        for device in result.devices:
            place = {} if device.rank is None else {"rank": device.rank}
            place |= {"device": device.device}
            figures = device.figures
            groups = (
                [figures.span],
                *(figures.buckets, figures.overlap, figures.exposed_copy_by_cause),
                *(figures.exposed_comm_by_cause, figures.exposed_other_by_cause, figures.idle_by_cause),
            )
            items.append({**place, "verdict": device.verdict, "over": device.basis})
            items += [
                {**place, **without(each, {"noise_floor": None})}
                for group in groups
                for each in group
                if each.before or each.after
            ]
            items += [
                {**place, "finding": each.rule, "standing": each.standing, "cost_ns": each.cost.after}
                for each in device.findings
                if each.standing != "same"
            ]
        figures_of = _PLAIN if result.of == "plain" else "of the recordings"
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
                "to fail if copies do not overlap with compute"
            ),
        ] = None,
        baseline: Annotated[str | None, Field(description="a trace, report or baseline to compare with")] = None,
        page: PageNumber = 1,
    ) -> str:
        """Check a recording against budgets, as in CI: pass, fail or inconclusive, with values, limits and reasons."""
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
                **{name: getattr(verdict, name) for name in ("budget", "status", "value", "limit", "unit", "message")},
                "subject": without(verdict.subject, {"source": ...}),
                "reasons": [
                    {"time_ns": reason.time_ns, "title": reason.title} for reason in verdict.reasons[:MAX_NAMES]
                ],
            }
            for verdict in result.verdicts
        ]
        head = {"outcome": result.outcome, "summary": result.summary, "exit_code": result.exit_code}
        figures = _RECORDED if result.program is None else _PLAIN
        return answer(head, items, figures=figures, unknown=result.warnings, called="verdicts", page=page)

    def ranks(
        self, path: Annotated[str, Field(description="directory with a trace of each rank")], page: PageNumber = 1
    ) -> str:
        """Find the rank that delays the others, and show how each rank spends its time."""
        from overlapscope.ranks.engine import reduce_each
        from overlapscope.ranks.files import expand_urls
        from overlapscope.ranks.join import report_on
        from overlapscope.ranks.on_host import reduce_any
        from overlapscope.ranks.result import by_steps, rows_of

        result = report_on(
            outcome
            for location in expand_urls(self.folders.files(path))
            for outcome in reduce_each(reduce_any, [location])
        )
        straggler = result.straggler
        head = {
            "straggler": None
            if straggler is None
            else without(straggler, {"collectives": ..., "source": ..., "waiting": ...}),
            "clocks": result.clocks,
            "missing_count": len(result.missing),
            "missing": result.missing[:MAX_NAMES],
        }
        less = {"source": ..., "step_spans_ns": ..., "device_name": ..., "doubts": (), "doubt_ids": ...}
        less |= {"judged": ..., "lead_in_ns": ..., "unjudged_comm_ns": ...}
        shown = rows_of(result)
        rows = [without(row, less) for row in shown]
        figures = f"{'of an average step ' if by_steps(shown) else ''}{_RECORDED}"
        unknown = [*(f"{reduced.source}: {reduced.reason}" for reduced in result.unreadable), *result.notes]
        return answer(head, rows, figures=figures, unknown=unknown, called="ranks", page=page)

    # -- Reading --------------------------------------------------------------------------------------

    def path(self, name: str) -> Path:
        """Return a file or directory, as `Folders.path`."""
        return self.folders.path(name)

    def trace(self, name: str) -> QueriedTraces:
        """Read a single trace. Raises UsageError for a directory, and errors of reading."""
        files = self.folders.files(name)
        if len(files) != 1:
            names = listed(map(self.folders.name, files), 20)
            raise UsageError(f"{name}: holds {len(files):,} traces; name one of them: {names}.")
        return _read((_version(files[0]),))

    def traces(self, name: str) -> QueriedTraces:
        """Read a trace, or all traces of a directory. Raises UsageError for too many, and errors of reading."""
        files = self.folders.files(name)
        if len(files) > _MAX_TRACES:
            raise UsageError(
                f"{name}: holds {len(files):,} traces, and at most {_MAX_TRACES} are read together; name one of them, "
                "or compare them with ranks."
            )
        return _read(tuple(map(_version, files)))

    doubts = staticmethod(doubts_about)
    answer = staticmethod(answer)

    def _report(self, path: str, plain_step_ns: int | None = None) -> Report:
        """Return the report that `overlapscope analyze` makes or wrote."""
        saved = self._saved(path)
        if saved is None:
            job = self.traces(path)
            return job.report if plain_step_ns is None else build(job.analyses, plain_step_ns=plain_step_ns)
        if plain_step_ns is not None:
            raise UsageError("plain_step_ns needs a trace, but this is a report.")
        return saved

    def _compared(self, path: str) -> Report:
        """Return a report for `diff` and `check`, without the savings of fixes."""
        return self._saved(path) or build(self.traces(path).analyses, replayed=False)

    def _saved(self, path: str) -> Report | None:
        """Return a report written by overlapscope; None for a trace."""
        place = self.folders.path(path)
        return read_report([place], cache=False) if place.is_file() and kind_of(place) else None


# -- Traces -----------------------------------------------------------------------------------------

_Version = tuple[Path, int, int, int]
"""Path, inode, time of change and size of a file."""


def _saves(part: DeviceReport, finding: Finding) -> dict[str, int] | None:
    """Return the saving of a finding's fix in an average step; None if unknown."""
    saving = finding.saving
    if saving is None:
        return None
    ends = {"ns": saving.saved_ns, "low_ns": saving.saved_low_ns, "high_ns": saving.saved_high_ns}
    return {name: part.per_step(ns) for name, ns in ends.items()}


def _version(path: Path) -> _Version:
    status = file_and_part(path)[0].stat()
    return path, status.st_ino, status.st_ctime_ns, status.st_size


@lru_cache(_CACHED_TRACES)
def _read(versions: tuple[_Version, ...]) -> QueriedTraces:
    return QueriedTraces(tuple(load(path, progress=False, cache=False) for path, *_ in versions))
