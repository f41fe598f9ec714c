"""Nonsense sent to every callback and every route: never a 500, never a traceback, and right answers afterwards."""

from __future__ import annotations

import copy
import json
import logging
import random
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import flask
import pytest
from flask.testing import FlaskClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlapscope.dashboard.library import Library
from overlapscope.dashboard.pages import PAGES
from overlapscope.dashboard.shell import create
from overlapscope.dashboard.upload import DroppedFiles
from overlapscope.plugins.history.stored import Stored
from overlapscope.ranks.document import MAPS
from tests.plugins.history.histories import weeks, write
from tests.support.dashboard_process import ask, serve

TRACES = Path(__file__).parents[2] / "traces"
TRACE = "blocking_copy"
POST = "/_dash-update-component"
TOKEN = "known to the fuzzer"
KNOWN = {"Authorization": f"token {TOKEN}"}

SEARCH = f"?trace={TRACE}"
VALUES: dict[str, Any] = {
    "url.pathname": "/overview",
    "url.search": SEARCH,
    "scheme-shown.data": "dark",
    "loaded.data": 0,
    "loading-clock.n_intervals": 1,
    "program-chosen.data": {"pathname": "/timeline", "search": f"{SEARCH}&from=0&to=1000"},
    "timeline-selection.data": {"trace": TRACE, "start": 0, "end": 1e6, "device": None},
    "timeline-config.data": {
        "trace": TRACE,
        "of": None,
        "base": "/",
        "device": 0,
        "model": {"lanes": []},
        "palette": {},
    },
    "copies-bandwidth.clickData": {"points": [{"curveNumber": 0, "x": 1, "y": 2.5, "customdata": [0, "a"]}]},
    "steps-chart.clickData": {"points": [{"x": 0, "y": 1, "customdata": [0]}]},
    "whatif-asked.data": {"trace": TRACE, "device": 0, "changes": ["pin"]},
    "whatif-clock.n_intervals": 1,
    "whatif-known.data": {"trace": TRACE, "device": 0, "changes": ["pin"]},
    "open-samples.n_clicks": 1,
    "whatif-best.n_clicks": 1,
    "whatif-best-clock.n_intervals": 1,
    "whatif-page.data": {"trace": TRACE, "device": 0, "plain": None},
    "compare-before.value": TRACE,
    "compare-after.value": "ddp/rank1",
    "ranks-source.value": "traces",
    **{f"{name}.clickData": {"points": [{"x": 0, "y": 0, "z": 1.0}]} for name in MAPS},
    **{f"{name}.id": name for name in MAPS},
    "ranks-steps.clickData": {"points": [{"x": 0, "y": 0, "z": 1.0}]},
    "ranks-steps.id": "ranks-steps",
    "ranks-buckets.clickData": {"points": [{"x": 0, "y": 0}]},
    "ranks-buckets.id": "ranks-buckets",
    "traces-clock.n_intervals": 1,
    "traces-known.data": 0,
    "history-clock.n_intervals": 1,
    "history-state.data": "1:2",
    "history-shown.data": ["train.py", "step_time", "commit"],
    "history-job.value": "train.py",
    "history-metric.value": "efficiency_pct",
    "history-by.value": "hour",
    "history-chart.clickData": {"points": [{"x": 0, "y": 1.5, "customdata": ["0" * 32, "told"]}]},
    "history-comparing.checked": True,
    "hta-name.value": "nothing of the kind",
    "hta-operator.value": "aten::",
    "hta-ranks.checked": False,
    "hta-nanoseconds.checked": False,
    "hta-run.n_clicks": 1,
    "hta-csv.n_clicks": 1,
}
"""Values in a browser for each property that a callback takes."""

NASTY: list[Any] = [
    None,
    True,
    0,
    -1,
    2**31,
    -(2**63),
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "0",
    "\0",
    "\ud800",
    "/" * 5000,
    "../../etc/passwd",
    "?trace=" + "%00" * 99,
    f"{SEARCH}&device=99999999999999999999&from=-9223372036854775808&to=9223372036854775807",
    "?job=x&metric=idle_time/x&by=x&entry=0&against=\0",
    f"{SEARCH}&from=9&to=3&with=ddp/rank1&report=x&of=recorded",
    "?trace=ddp/rank0&device=7",
    "x" * 100_000,
    [],
    {},
    [[]],
    [None] * 50,
    {"": None},
    {"points": [{"customdata": [10**30], "x": 10**30, "y": True}]},
    {"points": [{"customdata": [-1], "x": -1, "y": -1}]},
    {"trace": TRACE, "device": -1, "changes": ["pin", "pin", "nothing", ""]},
    {"trace": TRACE, "start": -(2**53), "end": 2**53, "device": 2**53},
    {"trace": TRACE, "start": 5, "end": 5, "device": 0},
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    history = write(tmp_path_factory.mktemp("history") / "history.sqlite", *weeks(8, 1, slow_from=4))
    traces = [TRACES / "known_causes" / f"{TRACE}.json.gz", TRACES / "ddp", TRACES / "laboratory"]
    library = Library(traces, data={"history": Stored(history)})
    server: flask.Flask = create(library, DroppedFiles(library, 10_000), base="/", token=TOKEN).server
    for trace in (TRACE, "ddp/rank0", "ddp/rank1"):
        library.wait(trace)
    return server.test_client()


@pytest.fixture(scope="module")
def posts(client: FlaskClient) -> list[dict[str, Any]]:
    """Return the post of a browser for each callback."""
    document = json.loads(client.get("/_dash-dependencies", headers=KNOWN).data)
    # Dash itself refuses a wrong number of components where a callback fills several of a kind.
    ours = [entry for entry in document if entry["clientside_function"] is None and '"ALL"' not in entry["output"]]
    posts = [as_post(entry) for entry in ours]
    assert len(posts) > 20
    return posts


def as_post(callback: dict[str, Any]) -> dict[str, Any]:
    def part(reference: dict[str, Any]) -> dict[str, Any]:
        name, id = reference["id"], reference["id"]
        if name.startswith("{"):
            id = json.loads(name) | {"index": "0-0"}
            name = id["type"]
        return {"id": id, "property": reference["property"], "value": VALUES[f"{name}.{reference['property']}"]}

    inputs = [part(item) for item in callback["inputs"]]
    output = callback["output"]
    several = output.startswith("..")
    outputs = []
    for item in output[2:-2].split("...") if several else [output]:
        id, _, property = item.rpartition(".")
        outputs.append({"id": json.loads(id) | {"index": "0-0"} if id.startswith("{") else id, "property": property})
    return {
        "output": output,
        "outputs": outputs if several else outputs[0],
        "inputs": inputs,
        "changedPropIds": [
            f"{action_input['id']}.{action_input['property']}"
            for action_input in inputs[:1]
            if isinstance(action_input["id"], str)
        ],
        "state": [part(item) for item in callback["state"]],
    }


def send(client: FlaskClient, body: bytes, content_type: str = "application/json") -> int:
    return client.post(POST, data=body, content_type=content_type, headers=KNOWN).status_code


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all values in a post."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def mutated(post: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Return the post with one to three of its parts replaced, left out, doubled or taken from elsewhere in it."""
    post = copy.deepcopy(post)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        posted = list(places(post))
        if not posted:
            break
        *way, last = draw.choice(posted)
        inside: Any = post
        for step in way:
            inside = inside[step]
        what = draw.randrange(4)
        if what == 0:
            del inside[last]
        elif what == 1 and isinstance(inside, list):
            inside.append(copy.deepcopy(inside[last]))
        elif what == 2:
            source: Any = post
            for step in draw.choice(posted):
                source = source[step]
            inside[last] = copy.deepcopy(source)
        else:
            inside[last] = copy.deepcopy(draw.choice(NASTY))
    return post


def no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]


def test_every_callback_answers_what_a_browser_posts(client: FlaskClient, posts: list[dict[str, Any]]) -> None:
    """Otherwise the other tests here would prove nothing."""
    for post in posts:
        assert send(client, encoded(post)) in (200, 204), post["output"]


def test_a_click_with_a_value_of_any_type_is_answered_or_refused(
    client: FlaskClient, posts: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    values: list[Any] = [True, False, 1.5, "0", 1, -1, 10**30, None, [], {}, [True], [[0]], [1.5]]
    for post in posts:
        for number, clicked in enumerate(post["inputs"]):
            ways = list(places(clicked["value"])) if clicked["property"] == "clickData" else []
            for way in ways:
                for value in values:
                    changed = copy.deepcopy(post)
                    inside = changed["inputs"][number]["value"]
                    for step in way[:-1]:
                        inside = inside[step]
                    inside[way[-1]] = value
                    assert send(client, encoded(changed)) in (200, 204, 400), (post["output"], way, value)
    no_trouble(caplog)


@pytest.mark.parametrize("seed", range(4))
def test_a_mutated_post_is_answered_or_refused(
    client: FlaskClient, posts: list[dict[str, Any]], caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    draw = random.Random(seed)
    for post in posts:
        for _ in range(12):
            bad = mutated(post, draw)
            caplog.clear()
            status = send(client, encoded(bad))
            assert status in (200, 204, 400), (status, bad)
            no_trouble(caplog)
            # One line says that it was refused, and why.
            assert (status == 400) == any("post of a callback" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("value", NASTY, ids=lambda value: repr(value)[:30])
def test_every_value_of_every_callback_may_be_nonsense(
    client: FlaskClient, posts: list[dict[str, Any]], caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    for post in posts:
        for part in ("inputs", "state"):
            for at in range(len(post[part])):
                bad = copy.deepcopy(post)
                bad[part][at]["value"] = value
                assert send(client, encoded(bad)) in (200, 204, 400), bad
    no_trouble(caplog)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"nothing",
        b"\xff\xfe",
        b'{"output": "\xff"}',
        b'{"output": "content.children", "inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 1_000_000,
        b'{"output":' * 10_000,
        b"9" * 1_000_000,
        b'{"output": 1e99999999}',
        b'{"output": NaN}',
        b'"' + b"x" * 5_000_000 + b'"',
    ],
    ids=lambda body: f"{body[:20]!r} {len(body)}",
)
def test_a_body_that_is_not_a_post_is_refused(
    client: FlaskClient, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    for content_type in ("application/json", "application/json; charset=utf-16"):
        assert send(client, body, content_type) == 400
    for content_type in ("text/plain", "multipart/form-data; boundary=x", "", "\xff"):
        assert send(client, body, content_type) == 415
    no_trouble(caplog)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_post_with_other_bytes_in_it_is_answered_or_refused(
    client: FlaskClient, posts: list[dict[str, Any]], caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    body = bytearray(encoded(data.draw(st.sampled_from(posts))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=4))
        body = body or bytearray(b"{")
    assert send(client, bytes(body)) in (200, 204, 400)
    no_trouble(caplog)


# -- the other routes

NAMES = ("trace", "of", "device", "start", "end", "from", "to", "columns", "lanes", "lane", "row", "after", "text")
MORE_NAMES = ("direction", "kind", "number", "predicted", "name", "with", "report", "token", "endId", "cacheKey")
ALL_NAMES = (*NAMES, *MORE_NAMES, "job", "metric", "by", "entry", "against")
ROUTES = ["/", *(f"/{page}" for page in PAGES), "/nowhere", "/_dash-layout", "/_dash-dependencies", "/_reload-hash"]
ROUTES += [f"/api/timeline/{name}" for name in ("model", "view", "op", "at", "search", "worst", "nothing")]
ROUTES += ["/api/export.html", "/api/annotated", "/api/at", "/api/upload", "/_favicon.ico", "/assets/nothing.js"]
ROUTES += ["/_dash-component-suites/dash/nothing.js", "/_dash-component-suites/nothing/x", POST]
SOME = [TRACE, "ddp/rank0", "nowhere", "", "0", "1", "-1", "1000000", "9" * 400, "1e5", "nan", "recorded", '["pin"]']
SOME += ["[]", '["nothing"]', "[" * 50_000, "1,2", "0,0", "1,", "copy", "idle", "\0", "\ud800", "x" * 5000, "%", "٣"]


def test_every_route_answers_nonsense_with_a_sentence(client: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(1)
    for _ in range(800):
        route = draw.choice(ROUTES)
        sane = {"trace": TRACE} if draw.random() < 0.7 else {}
        query = sane | {draw.choice(ALL_NAMES): draw.choice(SOME) for _ in range(draw.randrange(5))}
        text = "&".join(f"{name}={quote(value.encode('utf-8', 'surrogatepass'))}" for name, value in query.items())
        method = draw.choice(("GET", "GET", "GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE"))
        if draw.random() < 0.1:
            text = bytes(draw.randrange(33, 255) for _ in range(20)).decode("latin-1")
        answer = client.open(f"{route}?{text}", method=method, headers=KNOWN)
        assert answer.status_code < 500 or answer.status_code == 503, (method, route, text, answer.status_code)
        answer.get_data()
    no_trouble(caplog)
    assert client.get(f"/api/timeline/model?trace={TRACE}", headers=KNOWN).status_code == 200


def test_heads_of_any_bytes_leave_the_server_answering_and_its_log_empty(tmp_path: Path) -> None:
    shutil.copy(TRACES / "known_causes" / f"{TRACE}.json.gz", tmp_path)
    draw = random.Random(2)
    with serve(tmp_path) as served:
        head = f"POST /api/upload?name=x HTTP/1.1\r\nHost: localhost:{served.port}\r\nOrigin: http://localhost\r\n"
        head += f"Authorization: token {served.token}\r\nCookie: a=b; overlapscope=in.x.y\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 5\r\nSec-Fetch-Site: none\r\n\r\nabcde"
        for _ in range(300):
            sent = bytearray(head.encode())
            for _ in range(draw.randrange(1, 6)):
                at = draw.randrange(len(sent))
                sent[at : at + draw.randrange(4)] = bytes(draw.randrange(256) for _ in range(draw.randrange(5)))
            with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                answer = b""
                while part := connection.recv(1 << 16):
                    answer += part
                assert not answer or not answer.split(b" ", 2)[1].startswith(b"5"), bytes(sent)
        assert ask(served, f"/api/timeline/model?trace={TRACE}").status == 200
        assert served.lines[1:] == []
