"""The export of a view: which trace, which device, which span, and under what name."""

from __future__ import annotations

import shutil
from pathlib import Path

import flask
import pytest
from flask.testing import FlaskClient

from overlapscope.dashboard import routes
from overlapscope.dashboard.library import Library
from tests.core.render.test_html_report import Parsed, data
from tests.support.helpers import with_plain_steps

TRACES = Path(__file__).parents[3] / "traces"
LAUNCHES = "launch_bound"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> FlaskClient:
    folder = tmp_path_factory.mktemp("traces")
    launches = TRACES / "known_causes" / "launch_bound.json.gz"
    shutil.copy(launches, folder)
    shutil.copy(TRACES / "mixed_workloads" / "model_on_two_devices.json.gz", folder / "two.json.gz")
    shutil.copy(TRACES / "streamed1_pinned1.json.gz", folder / 'a "b"; c=ü.json.gz')
    with_plain_steps(launches, folder / "timed.json.gz", 1_900_000)
    (folder / "broken.json").write_text("nothing")
    server = flask.Flask(__name__)
    routes.register(server, Library([folder]), "/")
    return server.test_client()


def export(client: FlaskClient, **query: str | int) -> str:
    answer = client.get("/api/export.html", query_string=query)
    assert answer.status_code == 200
    assert answer.headers["Content-Disposition"].startswith("attachment; ")
    return answer.get_data(as_text=True)


def test_the_file_is_the_report(client: FlaskClient) -> None:
    document = export(client, trace=LAUNCHES)
    assert Parsed(document).loaded == []
    assert "dispatch" in Parsed(document).text


def test_the_timeline_opens_where_it_was(client: FlaskClient) -> None:
    document = export(client, trace=LAUNCHES, **{"from": 1_000_000, "to": 3_000_000})
    assert data(document, "timelines")["timeline-0"]["view"] == [1_000_000, 3_000_000]


def test_it_is_of_the_program_that_is_shown(client: FlaskClient) -> None:
    plain, recorded = (data(export(client, trace="timed", **of), "timelines") for of in ({}, {"of": "recorded"}))
    lengths = [item["timeline-0"]["view"][1] - item["timeline-0"]["view"][0] for item in (plain, recorded)]
    assert lengths[0] < 0.75 * lengths[1]


@pytest.mark.parametrize(
    "span", [{"from": 5}, {"from": 9, "to": 3}, {"from": "x", "to": "y"}, {"from": 10**18, "to": 10**19}]
)
def test_a_span_that_makes_no_sense_is_left_out(client: FlaskClient, span: dict[str, str | int]) -> None:
    asked, whole = (export(client, trace='a "b"; c=ü', **of) for of in (span, {}))
    assert data(asked, "timelines") == data(whole, "timelines")


def test_the_name_of_the_file_is_safe(client: FlaskClient) -> None:
    answer = client.get("/api/export.html", query_string={"trace": 'a "b"; c=ü'})
    assert answer.headers["Content-Disposition"] == "attachment; filename=a_b_c.html"


def test_what_cannot_be_exported_is_reported(client: FlaskClient) -> None:
    missing = client.get("/api/export.html", query_string={"trace": "<b>"})
    assert missing.status_code == 404 and missing.get_json()["error"] == "There is no trace '<b>' here."
    assert client.get("/api/export.html").status_code == 404
    broken = client.get("/api/export.html", query_string={"trace": "broken"})
    assert broken.status_code == 409 and "not JSON" in broken.get_json()["error"]
