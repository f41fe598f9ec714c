"""Predictions of the dashboard: made aside, once, kept while there is room, and drawn through the timeline's routes."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flask
import pytest
from msgspec import structs
from msgspec.structs import replace

from overlapscope import timeline as lanes
from overlapscope.analysis.periods import host_step
from overlapscope.catalog.interventions import INTERVENTIONS
from overlapscope.dashboard import routes
from overlapscope.dashboard.context import PageContext, UrlState
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.opened import DrawnPrediction, Opened, Predictions, WhatIfRequest
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.prediction.document import document
from overlapscope.prediction.predict import Prediction, applicable, predict
from overlapscope.reading import load
from overlapscope.reading.samples import SAMPLES
from overlapscope.trace.model import Trace

TRACE = Path(__file__).parents[3] / "traces" / "laboratory" / "offload_pipeline" / "one_stream.trace.json.gz"


@pytest.fixture(scope="module")
def library() -> Library:
    library = Library([TRACE])
    library.wait("one_stream")
    return library


@pytest.fixture
def opened(library: Library) -> Opened:
    return library.wait("one_stream")


class Made:
    """Stands in for `predict`: counts, and waits until it may go on."""

    def __init__(self, trace: Trace) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.result = predict(trace, ()).result

    def __call__(self, trace: Trace, interventions: Sequence[str], *, device: int) -> Prediction:
        self.asked.append(tuple(interventions))
        assert self.may_go_on.wait(30)
        if "nonsense" in interventions:
            raise UsageError("there is no intervention 'nonsense'.")
        if "broken" in interventions:
            raise ZeroDivisionError("by zero")
        return Prediction(self.result, trace, None)


@pytest.fixture
def predictor(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> Made:
    predictor = Made(opened.analysis.trace)
    monkeypatch.setattr("overlapscope.prediction.predict.predict", predictor)
    return predictor


def asked(*interventions: str) -> WhatIfRequest:
    return WhatIfRequest(0, interventions)


def test_what_takes_long_is_asked_for_again_and_made_once(opened: Opened, predictor: Made) -> None:
    predictions = Predictions()
    predictor.may_go_on.clear()
    assert [predictions.get(opened, asked("pin")) for _ in range(3)] == [None] * 3
    predictor.may_go_on.set()
    first = predictions.get(opened, asked("pin"), wait_s=30)
    assert isinstance(first, DrawnPrediction)
    assert predictions.get(opened, asked("pin")) is first
    assert predictor.asked == [("pin",)]


def test_what_was_asked_for_last_comes_first(opened: Opened, predictor: Made) -> None:
    predictions = Predictions()
    predictor.may_go_on.clear()
    for name in ("a", "b", "c"):
        predictions.get(opened, asked(name), wait_s=0.05)
    predictor.may_go_on.set()
    assert predictions.get(opened, asked("b"), wait_s=30) is not None
    assert predictor.asked[:2] == [("a",), ("b",)]


def test_what_cannot_be_predicted_says_why_each_time(opened: Opened, predictor: Made) -> None:
    predictions = Predictions()
    for _ in range(2):
        with pytest.raises(UsageError, match="nonsense"):
            predictions.get(opened, asked("nonsense"), wait_s=30)
        with pytest.raises(OverlapscopeError, match="ZeroDivisionError: by zero; please report"):
            predictions.get(opened, asked("broken"), wait_s=30)
    assert len(predictor.asked) == 2


def test_only_so_many_are_kept_and_none_of_a_trace_that_was_read_again(
    opened: Opened, predictor: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overlapscope.dashboard.opened.MAX_KEPT", 3)
    predictions = Predictions()
    for name in ("a", "b", "c", "a", "d"):
        predictions.get(opened, asked(name), wait_s=30)
    kept = [predictions._kept.get((weakref.ref(opened), asked(name))) for name in "abcd"]
    assert [each is not None for each in kept] == [True, False, True, True]
    again = replace(opened)
    assert predictions._kept.get((weakref.ref(again), asked("a"))) is None


def test_where_the_replay_is_not_valid_there_are_reasons_and_no_figures(library: Library, opened: Opened) -> None:
    # Dash takes a second to import, and all other tests here can do without it.
    from overlapscope.dashboard import render
    from overlapscope.dashboard.pages import whatif

    result = predict(opened.analysis.trace, ()).result
    reason = "31.2% of <img src=x> begin elsewhere."
    invalid = structs.replace(
        result,
        predicted_step_ns=None,
        gain_ns=None,
        buckets={},
        replay=structs.replace(result.replay, valid=False, reasons=(reason,)),
    )
    context = PageContext(UrlState(page="whatif", trace="one_stream"), library, opened, None, dark=False)
    text = str(render.draw(document(invalid).blocks, context.dark))
    assert "No prediction" in text and reason in text
    assert "Table(" not in text
    assert whatif.timelines(context, DrawnPrediction(invalid, None, frozenset()), ()) is None


@pytest.mark.parametrize(("sample", "offered"), [("data_loading", "faster-loader"), ("training_naive", "non-blocking")])
def test_changes_that_cannot_apply_are_not_offered(sample: str, offered: str) -> None:
    trace = load(SAMPLES / f"{sample}.json.gz")
    possible = applicable(trace, 0)
    assert offered in possible
    for kind in INTERVENTIONS.values():
        if not kind.argument_required and kind.id not in possible:
            (change,) = predict(trace, [kind.id]).result.interventions
            assert not change.touched


def test_a_predicted_timeline_is_drawn_by_the_same_routes(library: Library, opened: Opened) -> None:
    server = flask.Flask(__name__)
    routes.register(server, library, "/")
    client = server.test_client()

    def answer(predicted: str, device: Any = 0, name: str = "model") -> Any:
        query = {"trace": "one_stream", "predicted": predicted, "device": device}
        return client.get(f"/api/timeline/{name}", query_string=query)

    prediction = library.predictions.get(opened, asked("side-stream"), wait_s=60)
    assert prediction is not None and prediction.lanes is not None
    result = answer('["side-stream"]')
    assert result.json == lanes.model(prediction.lanes)
    assert len(result.json["lanes"]) > len(opened.lanes.lanes)
    for nonsense in ("pin", '{"a": 1}', "[1]"):
        assert answer(nonsense).status_code == 400
    assert "no intervention" in answer(json.dumps(["<img>"])).json["error"]
    assert answer("[]", "x").status_code == 400
    assert answer("[]", 7).status_code == 400


def test_both_timelines_show_the_host_and_the_device_in_the_same_step() -> None:
    from overlapscope.dashboard.pages import whatif

    """Once it launches graphs, the host is far ahead of the device."""
    library = Library([TRACE.parents[2] / "gpt2_train.json.gz"])
    opened, changes = library.wait("gpt2_train").of(None), ("graph",)
    prediction = Predictions().get(library.wait("gpt2_train"), WhatIfRequest(0, changes), wait_s=60)
    assert prediction is not None and prediction.lanes is not None
    data = whatif.timelines(PageContext.at(UrlState(trace="gpt2_train"), library), prediction, changes)
    assert data is not None
    for side, drawn in zip(data["sides"], (opened.lanes, prediction.lanes), strict=True):
        zero = side["offset"] + drawn.origin_ns
        step = next(step for step in drawn.device(0).result.steps if step.window.start_ns == zero)
        host = host_step(drawn.analysis.trace, step.name)
        assert step.name == "ProfilerStep#3" and host is not None
        for window in (step.window, host):
            assert data["view"]["start"] <= window.start_ns - zero
            assert window.end_ns - zero <= data["view"]["end"]
