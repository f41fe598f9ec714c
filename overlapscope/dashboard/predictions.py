"""Predictions that pages show: computed one at a time beside what is asked, each once, and kept while there is room."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlapscope import timeline as lanes
from overlapscope.analysis import analyze_trace
from overlapscope.base.words import clean
from overlapscope.errors import OverlapscopeError
from overlapscope.prediction import best, predict
from overlapscope.prediction.names import check_names
from overlapscope.prediction.result import WhatIf
from overlapscope.timeline import Lanes

if TYPE_CHECKING:
    from overlapscope.dashboard.library import Opened

KEPT_EVENTS = 10_000_000
"""Predicted timelines stay in memory, the most recently shown ones, up to so many events together: some 1 GB."""
MOST_KEPT = 64
"""Predictions, however small."""
_GIVEN_UP_S = 5.0
"""A page asks again and again for what it waits for; what it has not asked for so long, nobody waits for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One prediction."""

    device: int
    interventions: tuple[str, ...] | None
    """As `predict` takes them; None for those that gain most."""


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """A prediction, and its timeline prepared to be drawn."""

    result: WhatIf
    lanes: Lanes | None
    """None where nothing is predicted, or where what is best was asked for: what it consists of is known by itself."""

    @property
    def interventions(self) -> tuple[str, ...]:
        """What was changed, as `predict` takes it."""
        changes = self.result.interventions
        return tuple(one.intervention + (f" {one.argument}" if one.argument else "") for one in changes)


_Key = tuple[str, Asked]


@dataclass(frozen=True, slots=True)
class _Known:
    trace: weakref.ref[Opened]
    """What it is a prediction of: a trace that is read again is another one."""
    found: Predicted | OverlapscopeError
    events: int


class Predictions:
    """Thread-safe. One thread computes, the prediction asked for last first, and ends when nobody waits for any."""

    def __init__(self) -> None:
        self._known: dict[_Key, _Known] = {}
        self._wanted: dict[_Key, tuple[Opened, float]] = {}
        """With the time at which it was last asked for."""
        self._at_work: _Key | None = None
        self._working = False
        self._change = threading.Condition()

    def get(self, opened: Opened, asked: Asked, *, wait_s: float = 0.0) -> Predicted | None:
        """The prediction; None if it is not there after a wait, but under way: ask again.

        Raises OverlapscopeError where it cannot be made.
        """
        deadline = time.monotonic() + wait_s
        with self._change:
            while (found := self.known(opened, asked)) is None:
                now = time.monotonic()
                self._want(opened, asked, now)
                if now >= deadline:
                    return None
                self._change.wait(deadline - now)
            if isinstance(found, OverlapscopeError):
                # Else its traceback would grow with every time that it is raised.
                raise found.with_traceback(None)
            return found

    def known(self, opened: Opened, asked: Asked) -> Predicted | OverlapscopeError | None:
        """The prediction if it was made before."""
        with self._change:
            known = self._known.pop((opened.id, asked), None)
            if known is None or known.trace() is not opened:
                return None
            # Put last: the most recently used.
            self._known[opened.id, asked] = known
            return known.found

    def _want(self, opened: Opened, asked: Asked, now: float) -> None:
        key = opened.id, asked
        if key == self._at_work:
            return
        # Put last: the first to be computed.
        self._wanted.pop(key, None)
        self._wanted[key] = opened, now
        if not self._working:
            self._working = True
            threading.Thread(target=self._work, name="overlapscope-predictor", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._change:
                late = time.monotonic() - _GIVEN_UP_S
                self._wanted = {key: wanted for key, wanted in self._wanted.items() if wanted[1] >= late}
                if not self._wanted:
                    self._working = False
                    return
                self._at_work, (opened, _) = self._wanted.popitem()
                id, asked = self._at_work
            found = _compute(opened, asked)
            with self._change:
                self._at_work = None
                if asked.interventions is None and isinstance(found, Predicted):
                    self._keep(id, Asked(asked.device, found.interventions), opened, found)
                    found = Predicted(found.result, None)
                self._keep(id, asked, opened, found)
                self._change.notify_all()

    def _keep(self, id: str, asked: Asked, opened: Opened, found: Predicted | OverlapscopeError) -> None:
        """Make it known, and forget what was used least recently where there are too many; never the last two."""
        drawn = isinstance(found, Predicted) and found.lanes is not None
        self._known[id, asked] = _Known(weakref.ref(opened), found, opened.events if drawn else 0)
        self._known = {key: one for key, one in self._known.items() if one.trace() is not None}
        while len(self._known) > 2 and (
            len(self._known) > MOST_KEPT or sum(one.events for one in self._known.values()) > KEPT_EVENTS
        ):
            del self._known[next(iter(self._known))]


def _compute(opened: Opened, asked: Asked) -> Predicted | OverlapscopeError:
    trace = opened.analysis.trace
    try:
        if asked.interventions is None:
            prediction = best(trace, device=asked.device)
        else:
            check_names(trace, asked.interventions)
            prediction = predict(trace, asked.interventions, device=asked.device)
        after = prediction.after
        return Predicted(prediction.result, None if after is None else lanes.build(analyze_trace(after)))
    except OverlapscopeError as error:
        return error
    except MemoryError:
        return OverlapscopeError("There is not enough memory to predict anything for this trace.")
    except Exception as error:
        # The thread must live on; the page shows what happened, the log says where.
        logging.getLogger(__name__).exception("%s", opened.path)
        return OverlapscopeError(f"{type(error).__name__}: {clean(str(error), 500)}; please report this.")
