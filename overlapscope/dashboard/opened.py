"""Loaded traces with all that pages show of them, and predictions."""

from __future__ import annotations

import weakref
from functools import cached_property
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from overlapscope import timeline as lanes
from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.dashboard.background import Background, ProgressCallback, WeightedCache, attempt, or_raise
from overlapscope.errors import OverlapscopeError
from overlapscope.prediction import find_program
from overlapscope.prediction.result import WhatIf
from overlapscope.report.model import joined, of_program
from overlapscope.report.page import DeviceReport, Page, sampled_hosts
from overlapscope.timeline import Lanes
from overlapscope.trace.model import Trace

RECORDED = "recorded"
"""Value in URLs for the recording, instead of its plain program."""


class Opened(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """A loaded trace, or its plain program, with all that pages show of it."""

    id: str
    path: Path
    analysis: TraceAnalysis
    page: Page
    plain: Opened | None = None
    """The plain program, if its step is known; verdict and findings are about it then."""

    @cached_property
    def lanes(self) -> Lanes:
        """The timeline, built when first drawn, since few people look at both programs."""
        return lanes.build(self.analysis)

    @cached_property
    def bounds_ns(self) -> tuple[int, int]:
        """Start and end of the timeline, which pages link to before it is built."""
        return lanes.bounds(self.analysis.trace)

    def of(self, program: str | None) -> Opened:
        """Return the program to show: the plain program, if any, unless the URL asks for the recording."""
        return self if self.plain is None or program == RECORDED else self.plain

    def section(self, device: int | None = None) -> DeviceReport:
        """Return the report on a device, or on the first device if there is no such device."""
        sections = [*self.page.sections()]
        return next((each for each in sections if each.device and each.device.device == device), sections[0])


def open_trace(id: str, path: Path, trace: Trace) -> Opened:
    """Analyze a trace and return all that pages show of it."""
    analysis = analyze_trace(trace)
    program = find_program(analysis, None)
    report = joined([analysis], [program], scope="window", replayed=True)
    of_plain = of_program(report)
    sampled = sampled_hosts([analysis])
    plain = None
    if of_plain is not report and program is not None and program.analysis is not None:
        plain = Opened(id, path, program.analysis, Page(of_plain, sampled=sampled))
    return Opened(id, path, analysis, Page(report, recorded=plain is not None, sampled=sampled), plain)


# -- Predictions -----------------------------------------------------------------------------------

KEPT_EVENTS = 10_000_000
"""Maximum number of events of predicted timelines in memory, some 1 GB. The most recently shown timelines stay."""
MAX_KEPT = 64
"""Maximum number of predictions, however small."""
_GIVEN_UP_S = 5.0
"""Seconds after which a request counts as abandoned; waiting pages repeat their requests."""


class WhatIfRequest(Struct, frozen=True):
    """A request for a prediction."""

    device: int
    interventions: tuple[str, ...] | None
    """Interventions as `predict` takes them; None for the set that gains most."""


class DrawnPrediction(Struct, frozen=True, eq=False):
    """A prediction with its timeline."""

    result: WhatIf
    lanes: Lanes | None
    """None if nothing is predicted or the request was for the best set, whose interventions are predicted separately.
    """
    applicable: frozenset[str]
    """Interventions without a required argument that change the steps."""

    @property
    def interventions(self) -> tuple[str, ...]:
        """The changes, as `predict` takes them."""
        changes = self.result.interventions
        return tuple(change.intervention + (f" {change.argument}" if change.argument else "") for change in changes)


_Key = tuple[weakref.ref[Opened], WhatIfRequest]
"""A trace as it was read, and the request. A trace that is read again has a new key."""


class Predictions:
    """Predictions, thread-safe. The latest request is computed first; requests that no page repeats are dropped."""

    def __init__(self) -> None:
        self._kept: WeightedCache[_Key, DrawnPrediction | OverlapscopeError] = WeightedCache(KEPT_EVENTS)
        self._background = Background("predictor", self._compute, self._kept, _weight, given_up_s=_GIVEN_UP_S)

    def get(self, opened: Opened, request: WhatIfRequest, *, wait_s: float = 0.0) -> DrawnPrediction | None:
        """Return the prediction; None if it isn't ready after `wait_s`, so the caller has to ask again.

        Raises:
            OverlapscopeError: The prediction is impossible.
        """
        prediction = self._background.get((weakref.ref(opened), request), wait_s)
        return None if prediction is None else or_raise(prediction)

    def _compute(self, key: _Key, tell: ProgressCallback) -> DrawnPrediction | OverlapscopeError:
        self._kept.forget(lambda kept: kept[0]() is None)
        reference, request = key
        opened = reference()
        if opened is None:
            return OverlapscopeError("This trace is no longer in memory; load the page again.")
        trace = opened.analysis.trace
        prediction = attempt("The prediction", lambda: _predict(trace, request))
        if request.interventions is None and isinstance(prediction, DrawnPrediction):
            # Keep the prediction of the best set under its interventions.
            self._background.put((reference, WhatIfRequest(request.device, prediction.interventions)), prediction)
            return replace(prediction, lanes=None)
        return prediction


def _weight(prediction: DrawnPrediction | OverlapscopeError) -> int:
    drawn = prediction.lanes if isinstance(prediction, DrawnPrediction) else None
    return max(0 if drawn is None else events_of(drawn.analysis.trace), KEPT_EVENTS // MAX_KEPT)


def events_of(trace: Trace) -> int:
    """Return the number of events in a timeline."""
    tables = (trace.gpu_ops, trace.runtime_calls, trace.cpu_ops, trace.annotations, trace.python_frames)
    return sum(len(table) for table in tables)


def _predict(trace: Trace, request: WhatIfRequest) -> DrawnPrediction:
    # The first page needs neither.
    from overlapscope.prediction.interventions import check_names
    from overlapscope.prediction.predict import applicable, best, predict

    if request.interventions is None:
        prediction = best(trace, device=request.device)
    else:
        check_names(trace, request.interventions)
        prediction = predict(trace, request.interventions, device=request.device)
    after, can_apply = prediction.after, applicable(trace, request.device)
    return DrawnPrediction(prediction.result, None if after is None else lanes.build(analyze_trace(after)), can_apply)
