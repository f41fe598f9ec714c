"""Tests of the timeline's routes: valid requests, and answers to nonsense."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import flask
import pytest
from flask.testing import FlaskClient

from overlapscope import timeline as lanes
from overlapscope.dashboard import routes
from overlapscope.dashboard.library import Library
from overlapscope.timeline import Lanes
from tests.support.helpers import with_plain_steps

TRACE = Path(__file__).parents[3] / "traces" / "known_causes" / "event_wait.json.gz"


@pytest.fixture(scope="module")
def library() -> Library:
    library = Library([TRACE])
    library.wait(library.entries()[0].id)
    return library


@pytest.fixture(scope="module")
def drawn(library: Library) -> Lanes:
    """Return the timeline of the recording, whose plain step is unknown."""
    opened = library.wait(library.entries()[0].id)
    assert opened.plain is None
    return opened.lanes


@pytest.fixture(scope="module")
def client(library: Library) -> FlaskClient:
    server = flask.Flask(__name__)
    routes.register(server, library, "/")
    return server.test_client()


def ask(client: FlaskClient, library: Library, name: str, **asked: Any) -> Any:
    return client.get(f"/api/timeline/{name}", query_string={"trace": library.entries()[0].id, **asked})


def test_the_model_says_what_there_is_to_draw(client: FlaskClient, library: Library, drawn: Lanes) -> None:
    answer = ask(client, library, "model")
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json == lanes.model(drawn)
    assert answer.json["origin_ns"] == str(drawn.origin_ns)


@pytest.mark.afresh
def test_a_picture_of_devices_alone_makes_no_lanes_of_the_host() -> None:
    library, server = Library([TRACE]), flask.Flask(__name__)
    routes.register(server, library, "/")
    client, drawn = server.test_client(), library.wait(library.entries()[0].id).lanes
    model = ask(client, library, "model", devices="only").json
    ids = [lane["id"] for lane in model["lanes"]]
    asked = {"start": 0, "end": drawn.end_ns, "columns": 800, "lanes": ",".join(map(str, ids))}
    view = ask(client, library, "view", **asked).data
    assert "lanes" not in vars(drawn), "built for what shows no host"
    whole = ask(client, library, "model").json
    assert ids and model == whole | {"lanes": [lane for lane in whole["lanes"] if lane["kind"] != "host"]}
    assert view == lanes.view(drawn, 0, drawn.end_ns, 800, ids)


def test_it_is_of_the_plain_program_unless_the_recording_is_asked_for(tmp_path: Path) -> None:
    timed = with_plain_steps(TRACE.parents[1] / "gpt2_train.json.gz", tmp_path / "t.json.gz", 35_700_000)
    library, server = Library([timed]), flask.Flask(__name__)
    routes.register(server, library, "/")
    opened = library.wait("t")
    assert opened.plain is not None
    answers = [ask(server.test_client(), library, "model", **of) for of in ({}, {"of": "recorded"})]
    assert [answer.json for answer in answers] == [lanes.model(opened.plain.lanes), lanes.model(opened.lanes)]
    assert answers[0].json["end"] < answers[1].json["end"]


def test_a_view_is_packed_where_the_browser_takes_it(client: FlaskClient, library: Library, drawn: Lanes) -> None:
    expected = lanes.view(drawn, -5, drawn.end_ns, 800, [0, 2])
    asked = {"start": -5, "end": drawn.end_ns, "columns": 800, "lanes": "0,2"}
    plain = ask(client, library, "view", **asked)
    assert plain.data == expected
    assert "Content-Encoding" not in plain.headers
    query = {"trace": library.entries()[0].id, **asked}
    packed = client.get("/api/timeline/view", query_string=query, headers={"Accept-Encoding": "gzip, br"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.headers["Content-Type"] == "application/octet-stream"
    assert gzip.decompress(packed.data) == expected


def test_an_op_is_found_where_a_person_points(client: FlaskClient, library: Library, drawn: Lanes) -> None:
    match = ask(client, library, "worst", kind="exposed-copy", number=0).json["match"]
    asked = {"lane": match["lane"], "start": match["start"], "end": match["end"]}
    document = ask(client, library, "at", **asked).json
    assert document == ask(client, library, "op", lane=match["lane"], row=match["row"]).json
    assert document == json.loads(json.dumps(lanes.op(drawn, match["lane"], match["row"])))
    assert ask(client, library, "at", lane=match["lane"], start=-50, end=-40).json is None


def test_search_goes_both_ways(client: FlaskClient, library: Library) -> None:
    first = ask(client, library, "search", text="memcpy").json
    assert first["number"] == 1
    second = ask(client, library, "search", text="MEMCPY", after=first["match"]["start"]).json
    assert second["number"] == 2
    back = ask(client, library, "search", text="memcpy", after=second["match"]["start"], direction=-1).json
    assert back == first
    match = back["match"]
    assert ask(client, library, "search", text="memcpy", lane=match["lane"], row=match["row"]).json == second
    assert ask(client, library, "search", text="no such").json == {"count": 0, "number": 0, "match": None}


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("view", {"start": 0, "columns": 10}),
        ("view", {"start": 0, "end": "1e9", "columns": 10}),
        ("view", {"start": 0, "end": "nan", "columns": 10}),
        ("view", {"start": 5, "end": 5, "columns": 10}),
        ("view", {"start": 0, "end": 1 << 60, "columns": 10}),
        ("view", {"start": 0, "end": 9, "columns": 0}),
        ("view", {"start": 0, "end": 9, "columns": 8193}),
        ("view", {"start": 0, "end": 9, "columns": 10, "lanes": "0,x"}),
        ("view", {"start": 0, "end": 9, "columns": 10, "lanes": "0,0"}),
        ("op", {"lane": 0}),
        ("op", {"lane": 0, "row": -1}),
        ("op", {"lane": "0; drop", "row": 0}),
        ("at", {"lane": 0, "start": 0}),
        ("search", {"text": "a", "direction": 0}),
        ("search", {"text": "a", "direction": 2}),
        ("search", {"text": "a" * 501}),
        ("search", {"text": "a", "lane": 0}),
        ("search", {"text": "a", "row": 0}),
        ("worst", {"kind": "everything"}),
        ("worst", {"kind": "idle", "number": -1}),
    ],
)
def test_nonsense_is_answered_with_a_sentence(
    client: FlaskClient, library: Library, name: str, asked: dict[str, Any]
) -> None:
    answer = ask(client, library, name, **asked)
    assert answer.status_code == 400
    assert answer.json["error"].endswith(".")


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("model", {"trace": "no such trace"}),
        ("model", {"trace": "../../etc/passwd"}),
        ("op", {"lane": 99, "row": 0}),
        ("op", {"lane": 0, "row": 1 << 30}),
        ("at", {"lane": 99, "start": 0, "end": 5}),
        ("search", {"text": "a", "lane": 99, "row": 0}),
        ("view", {"start": 0, "end": 9, "columns": 10, "lanes": "99"}),
    ],
)
def test_what_does_not_exist_is_not_found(
    client: FlaskClient, library: Library, name: str, asked: dict[str, Any]
) -> None:
    answer = ask(client, library, name, **asked)
    assert answer.status_code == 404
    assert answer.json["error"].endswith(".")


def test_a_trace_that_nobody_opened_is_not_found() -> None:
    server = flask.Flask(__name__)
    library = Library([TRACE])
    routes.register(server, library, "/")
    answer = server.test_client().get("/api/timeline/model", query_string={"trace": library.entries()[0].id})
    assert answer.status_code == 404
    assert server.test_client().get("/api/timeline/model").status_code == 404
