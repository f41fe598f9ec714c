"""A loaded trace with everything that is shown of it, and the predictions that pages show."""

from __future__ import annotations

import weakref
from functools import cached_property
from pathlib import Path

from msgspec import Struct

from overlapscope import timeline as lanes
from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.base.memory import give_back
from overlapscope.dashboard.background import Background, Kept, Tell, attempt, raised
from overlapscope.dashboard.entries import TraceEntry
from overlapscope.dashboard.url import RECORDED
from overlapscope.errors import OverlapscopeError
from overlapscope.prediction import best, predict
from overlapscope.prediction.interventions import check_names
from overlapscope.prediction.program import find_program
from overlapscope.prediction.result import WhatIf
from overlapscope.report.model import Report, joined, of_program
from overlapscope.report.page import DeviceReport, Page
from overlapscope.timeline import Lanes
from overlapscope.trace.model import Trace


class Opened(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """A loaded trace with everything that is shown of it; or its plain program, which is shown alike."""

    id: str
    path: Path
    analysis: TraceAnalysis
    report: Report
    page: Page
    plain: Opened | None = None
    """Its plain program, where verdict and findings speak of that."""

    @cached_property
    def lanes(self) -> Lanes:
        """Prepared when first drawn: not everybody looks at both programs."""
        built = lanes.build(self.analysis)
        give_back()
        return built

    def of(self, program: str | None) -> Opened:
        """What is shown: the plain program where there is one, unless the recording is asked for (`Place.of`)."""
        return self if self.plain is None or program == RECORDED else self.plain

    def section(self, device: int | None = None) -> DeviceReport:
        """The device asked for; the first one where there is no such device."""
        sections = list(self.page.sections())
        return next(
            (section for section in sections if section.device and section.device.device == device), sections[0]
        )


def open_trace(entry: TraceEntry, trace: Trace) -> Opened:
    """Everything that is shown of a trace. Takes as long as its analysis."""
    analysis = analyze_trace(trace)
    program = find_program(analysis, None, estimate=True)
    report = joined([analysis], [program], scope="window", replayed=True)
    spoken = of_program(report)
    plain = None
    if spoken is not report and program is not None and program.analysis is not None:
        plain = Opened(entry.id, entry.path, program.analysis, spoken, Page(spoken, verbose=True))
    return Opened(entry.id, entry.path, analysis, report, Page(report, verbose=True), plain)


# -- predictions ----------------------------------------------------------------------------------

KEPT_EVENTS = 10_000_000
"""Predicted timelines stay in memory, the most recently shown ones, up to so many events together: some 1 GB."""
MOST_KEPT = 64
"""Predictions, however small."""
_GIVEN_UP_S = 5.0
"""A page asks again and again for what it waits for; what it has not asked for so long, nobody waits for."""


class WhatIfRequest(Struct, frozen=True):
    """One prediction."""

    device: int
    interventions: tuple[str, ...] | None
    """As `predict` takes them; None for those that gain most."""


class DrawnPrediction(Struct, frozen=True, eq=False):
    """A prediction, and its timeline prepared to be drawn."""

    result: WhatIf
    lanes: Lanes | None
    """None where nothing is predicted, or where what is best was asked for: what it consists of is known by itself."""

    @property
    def interventions(self) -> tuple[str, ...]:
        """What was changed, as `predict` takes it."""
        changes = self.result.interventions
        return tuple(change.intervention + (f" {change.argument}" if change.argument else "") for change in changes)


_Key = tuple[weakref.ref[Opened], WhatIfRequest]
"""Of a trace as it was read: one that is read again is another one."""


class Predictions:
    """Thread-safe. The prediction asked for last is computed first; what no page waits for is not computed."""

    def __init__(self) -> None:
        self._kept: Kept[_Key, DrawnPrediction | OverlapscopeError] = Kept(KEPT_EVENTS)
        self._background = Background("predictor", self._compute, self._kept, _weight, given_up_s=_GIVEN_UP_S)

    def get(self, opened: Opened, asked: WhatIfRequest, *, wait_s: float = 0.0) -> DrawnPrediction | None:
        """The prediction; None if it is not there after a wait, but under way: ask again.

        Raises OverlapscopeError where it cannot be made.
        """
        prediction = self._background.get((weakref.ref(opened), asked), wait_s)
        return None if prediction is None else raised(prediction)

    def known(self, opened: Opened, asked: WhatIfRequest) -> DrawnPrediction | OverlapscopeError | None:
        """The prediction if it was made before."""
        return self._kept.get((weakref.ref(opened), asked))

    def _compute(self, key: _Key, tell: Tell) -> DrawnPrediction | OverlapscopeError:
        self._kept.forget(lambda kept: kept[0]() is None)
        reference, asked = key
        opened = reference()
        if opened is None:
            return OverlapscopeError("This trace is not in memory any more; load the page again.")
        trace = opened.analysis.trace
        prediction = attempt("The prediction", lambda: _predict(trace, asked))
        if asked.interventions is None and isinstance(prediction, DrawnPrediction):
            # What is best is known by itself.
            self._background.put((reference, WhatIfRequest(asked.device, prediction.interventions)), prediction)
            return DrawnPrediction(prediction.result, None)
        return prediction


def _weight(prediction: DrawnPrediction | OverlapscopeError) -> int:
    drawn = prediction.lanes if isinstance(prediction, DrawnPrediction) else None
    return max(0 if drawn is None else events_of(drawn.analysis.trace), KEPT_EVENTS // MOST_KEPT)


def events_of(trace: Trace) -> int:
    """How many events a timeline holds."""
    tables = (trace.gpu_ops, trace.runtime_calls, trace.cpu_ops, trace.annotations, trace.python_frames)
    return sum(len(table) for table in tables)


def _predict(trace: Trace, asked: WhatIfRequest) -> DrawnPrediction:
    if asked.interventions is None:
        prediction = best(trace, device=asked.device)
    else:
        check_names(trace, asked.interventions)
        prediction = predict(trace, asked.interventions, device=asked.device)
    after = prediction.after
    return DrawnPrediction(prediction.result, None if after is None else lanes.build(analyze_trace(after)))
