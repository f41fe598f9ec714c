"""Tests of the dashboard's logic: the meaning of URLs, the traces that it may show, and its start."""

from __future__ import annotations

import gzip
import re
import shutil
import signal
import socket
import webbrowser
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import flask
import pytest
from dash import no_update
from hypothesis import given
from hypothesis import strategies as st

import overlapscope as ov
from overlapscope.analysis.figures import Window
from overlapscope.commands import main
from overlapscope.dashboard import launch
from overlapscope.dashboard.context import PageContext, UrlState, moved, parse
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.opened import RECORDED, Opened
from overlapscope.dashboard.pages import copies, overview
from overlapscope.dashboard.security import own_token
from overlapscope.dashboard.server import DEFAULT_PORT, Listening
from overlapscope.dashboard.shell import look
from overlapscope.errors import UnreadableTrace, UsageError
from overlapscope.plugin import Plugin, PluginPage
from overlapscope.reading.samples import SAMPLES
from overlapscope.report.verdict import judge
from tests.core.reading.test_reader import document, event, write
from tests.support.dashboard_process import ask, serve
from tests.support.helpers import with_plain_steps

TRACES = Path(__file__).parents[2] / "traces"

# -- URLs -----------------------------------------------------------------------------------------

ids = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
numbers = st.none() | st.integers(-(2**62), 2**62)


@given(
    st.sampled_from(["/", "/proxy/8050/"]),
    ids,
    st.none() | st.integers(0, 99),
    numbers,
    numbers,
    st.none() | ids,
    st.sampled_from([None, RECORDED]),
)
def test_a_link_leads_to_the_place_it_names(
    base: str, trace: str, device: int | None, start: int | None, end: int | None, other: str | None, of: str | None
) -> None:
    place = UrlState(base, "steps", trace, device, start, end, other, of=of)
    path, _, query = place.href().partition("?")
    assert parse(base, path, f"?{query}") == place


def test_a_span_stays_with_its_trace_and_its_page() -> None:
    place = UrlState(page="timeline", trace="a", device=1, start_ns=5, end_ns=9)
    assert place.href("timeline") == "/timeline?trace=a&device=1&from=5&to=9"
    assert place.href("copies") == "/copies?trace=a&device=1"
    assert place.href(trace="b") == "/timeline?trace=b"
    assert UrlState(trace="a").href("timeline", start_ns=1, end_ns=2) == "/timeline?trace=a&from=1&to=2"


def test_the_choice_of_the_recording_goes_along_everywhere_and_a_span_stays_behind() -> None:
    place = UrlState(page="timeline", trace="a", device=1, start_ns=5, end_ns=9, of=RECORDED)
    assert place.href("copies") == "/copies?trace=a&device=1&of=recorded"
    assert place.href(trace="b") == "/timeline?trace=b&of=recorded"
    assert place.href(of=None) == "/timeline?trace=a&device=1"


def test_nonsense_in_a_url_is_left_out() -> None:
    nonsense = f"?trace=x&device=one&from=1e3&to={'9' * 30}&of=all&foo=1"
    assert parse("/", "/steps/", nonsense) == UrlState(page="steps", trace="x")
    assert parse("/", None, None) == UrlState(page="")


def test_choices_on_pages_of_plugins_go_along_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    page = PluginPage("toy", "Toy", "no.such.module", state=("toy", "color"))
    monkeypatch.setattr("overlapscope.dashboard.context.plugins", lambda: [Plugin("toy", pages=(page,))])
    place = parse("/", "toy", "?trace=a&color=red&size=3")
    assert place == UrlState(page="toy", trace="a", choices={"color": "red"})
    assert place.href("copies") == "/copies?trace=a&color=red"
    assert place.href(toy="x", color=None) == "/toy?trace=a&toy=x"


# -- which traces ---------------------------------------------------------------------------------


def test_a_file_that_is_missing_is_reported_before_anything_is_served(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="the file does not exist"):
        Library([tmp_path / "missing.json"])


def test_a_dropped_file_is_called_by_its_own_name(tmp_path: Path) -> None:
    """Not by that of the place where it lies."""
    library = Library()
    good = shutil.copy(TRACES / "streamed1_pinned1.json.gz", tmp_path / "tmp1.json.gz")
    bad = tmp_path / "tmp2.json"
    bad.write_text("{")
    section = library.wait(library.add(Path(good), "mine.json.gz")).section()
    assert section.title.startswith("mine.json.gz")
    with pytest.raises(UnreadableTrace, match=r"^bad\.json: ") as error:
        library.wait(library.add(bad, "bad.json"))
    assert str(tmp_path) not in str(error.value)


def test_a_directory_stands_for_all_that_is_below_it() -> None:
    library = Library([TRACES])
    entries = library.entries()
    assert [entry.id for entry in entries[:3]] == ["gpt2_train", "pipeline_1stream", "pipeline_3stream"]
    by_id = {entry.id: entry for entry in entries}
    assert by_id["laboratory/offload_pipeline/one_stream"].folder == "laboratory/offload_pipeline"
    assert library.siblings("ddp/rank1") == ("ddp/rank0", "ddp/rank1")
    assert library.entry("../truth") is None and library.entry(None) is None
    assert list(library.files("results.json")) == [TRACES / "laboratory" / "results.json"]


def test_equal_names_are_distinguished(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        shutil.copy(TRACES / "streamed0_pinned0.json.gz", tmp_path / folder / "x.json.gz")
    files = Library([tmp_path / "a" / "x.json.gz", tmp_path / "b" / "x.json.gz"])
    assert [entry.id for entry in files.entries()] == ["x", "x (2)"]
    directories = Library([tmp_path / "a", tmp_path / "b"])
    assert [entry.id for entry in directories.entries()] == ["a/x", "b/x"]
    again = Library([tmp_path / "a", tmp_path / "a" / "x.json.gz"])
    assert [entry.id for entry in again.entries()] == ["a/x"]


def test_what_is_missing_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="no trace in this directory"):
        Library([tmp_path])
    with pytest.raises(UnreadableTrace, match="matches no file"):
        Library([tmp_path / "*.json"])


def test_a_trace_is_loaded_when_it_is_wanted() -> None:
    library = Library([TRACES])
    assert library.opened("gpt2_train") is None
    opened = library.wait("gpt2_train")
    assert library.opened("gpt2_train") is opened
    assert opened.section(0).title == "gpt2_train.json.gz, NVIDIA H200"
    assert opened.section(7).device == opened.section().device


def test_the_clock_of_a_page_stops_as_soon_as_its_trace_is_loaded() -> None:
    """Another tick would have the page made anew."""
    library = Library([TRACES / "streamed0_pinned0.json.gz"])
    context = PageContext.at(UrlState(trace="streamed0_pinned0"), library)
    _, loaded, stopped = look(context, 1, 4)
    assert (loaded, stopped) == (no_update, no_update)
    library.wait("streamed0_pinned0")
    assert look(PageContext.at(context.url, library), 2, 4) == (no_update, 5, True)


def test_peer_copies_are_listed_although_nothing_is_copied_from_or_to_the_host() -> None:
    library = Library([TRACES / "mixed_workloads" / "model_on_two_devices.json.gz"])
    library.wait("model_on_two_devices")
    context = PageContext.at(UrlState(page="copies", trace="model_on_two_devices", device=1), library)
    device = context.section.device
    assert device is not None and not device.overlap.copy_ns
    shown = str([*copies.layout(context, device)])
    assert "device 1 to 0" in shown and "None in this recording" in shown


def test_a_copy_of_a_time_rounded_to_nothing_is_listed_as_one_between_host_and_device(tmp_path: Path) -> None:
    copy = event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 5, 0, args={"device": 0, "stream": 9, "bytes": 4096})
    kernel = event("kernel", "gemm", 7, 3, args={"device": 0, "stream": 7})
    library = Library([write(tmp_path / "trace.json", document([copy, kernel]))])
    library.wait("trace")
    context = PageContext.at(UrlState(page="copies", trace="trace", device=0), library)
    device = context.section.device
    assert device is not None
    shown = str([*copies.layout(context, device)])
    assert "h2d" in shown and "None in this recording" in shown


def test_a_trace_that_cannot_be_read_says_why_and_harms_no_other(tmp_path: Path) -> None:
    (tmp_path / "bad.json.gz").write_bytes(gzip.compress(b"<html>"))
    shutil.copy(TRACES / "streamed0_pinned0.json.gz", tmp_path)
    library = Library([tmp_path])
    with pytest.raises(UnreadableTrace, match=r"bad\.json\.gz"):
        library.wait("bad")
    assert library.failure("bad") is not None
    assert library.wait("streamed0_pinned0").page.report.devices
    with pytest.raises(UnreadableTrace, match="no such trace"):
        library.wait("other")


def test_where_memory_is_short_the_two_shown_last_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlapscope.dashboard.library.KEPT_EVENTS", 1)
    library = Library([TRACES / "ddp", TRACES / "streamed0_pinned0.json.gz"])
    ids = [entry.id for entry in library.entries()]
    for id in (*ids, ids[1]):
        assert library.wait(id).id == id
    assert [library.opened(id) is not None for id in ids] == [False, True, True]


def test_a_trace_that_could_not_be_read_is_read_again_once_its_file_has_changed(tmp_path: Path) -> None:
    trace = tmp_path / "t.json.gz"
    trace.write_bytes(b"unfinished")
    library = Library([trace])
    for _ in range(2):
        with pytest.raises(UnreadableTrace):
            library.wait("t")
    shutil.copy(TRACES / "streamed0_pinned0.json.gz", trace)
    assert library.failure("t") is None
    assert library.wait("t").page.report.devices


def test_a_dropped_trace_is_one_of_its_own() -> None:
    library = Library()
    path = TRACES / "streamed0_pinned0.json.gz"
    assert library.add(path, "x.json.gz") == "dropped/x"
    assert library.add(path, "x.json.gz") == "dropped/x (2)"
    assert library.wait("dropped/x").page.report.devices
    assert library.id_of(path) == "dropped/x"


# -- the plain program ----------------------------------------------------------------------------

PLAIN_STEP_NS = 35_700_000
"""For the recording of GPT-2, whose step took 50.97 ms."""


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Return a recording around which plain steps were timed."""
    path = tmp_path_factory.mktemp("timed") / "t.json.gz"
    return Library([with_plain_steps(TRACES / "gpt2_train.json.gz", path, PLAIN_STEP_NS)]).wait("t")


def step_ns(opened: Opened) -> int:
    device = opened.section().device
    assert device is not None
    return device.span_ns


def test_the_plain_program_is_shown_unless_the_recording_is_asked_for(timed: Opened) -> None:
    plain = timed.of(None)
    assert plain is timed.plain and timed.of(RECORDED) is timed
    assert step_ns(plain) == pytest.approx(PLAIN_STEP_NS, abs=2)
    assert step_ns(timed) > 1.4 * PLAIN_STEP_NS
    assert plain.lanes.end_ns < timed.lanes.end_ns


def test_findings_lead_to_a_case_of_the_recording_and_to_its_place_in_the_program(timed: Opened) -> None:
    plain = timed.of(None)
    assert plain.page.report.findings == timed.page.report.findings
    finding = plain.page.report.findings[0]
    assert finding.rule == "dispatch" and finding.example is not None
    device = timed.analysis.devices[0].result
    assert finding.example in [group.example for group in device.evidence if group.cause == "dispatch"]
    shown = moved(finding.example, 0, timed.analysis.trace, plain.analysis.trace)
    assert 0 < shown.end_ns - shown.start_ns < finding.example.end_ns - finding.example.start_ns


@pytest.mark.parametrize("name", ["gpt2_train.json.gz", "jax/late.xplane.pb"])
def test_without_timed_steps_the_recording_is_shown(name: str) -> None:
    opened = Library([TRACES / name]).wait(Path(name).name.partition(".")[0])
    assert opened.plain is None and opened.of(None) is opened.of(RECORDED) is opened and not opened.section().is_plain
    assert judge(opened.section()).level != "recorded"


def test_an_instant_is_found_in_the_other_timeline_by_the_ops_around_it(timed: Opened) -> None:
    recorded, plain = timed.analysis.trace, timed.of(None).analysis.trace
    row_of = {place: row for row, place in enumerate(plain.gpu_ops.place.tolist())}
    for row in range(0, len(recorded.gpu_ops), 97):
        there = row_of[int(recorded.gpu_ops.place[row])]
        window, expected = (
            Window(start_ns=int(ops.start_ns[at]), end_ns=int(ops.end_ns[at]))
            for ops, at in ((recorded.gpu_ops, row), (plain.gpu_ops, there))
        )
        assert moved(window, 0, recorded, plain) == expected
        assert moved(expected, 0, plain, recorded) == window
    ends = [(int(item.gpu_ops.start_ns.min()), int(item.gpu_ops.end_ns.max())) for item in (recorded, plain)]
    around, expected = (Window(start_ns=first - 2**62, end_ns=last + 2**62) for first, last in ends)
    assert moved(around, 0, recorded, plain) == expected
    assert moved(around, 0, recorded, recorded) == around


# -- notebook -------------------------------------------------------------------------------------


def test_a_notebook_shows_a_frame_on_a_server_of_its_own() -> None:
    paths = [TRACES / "streamed0_pinned0.json.gz"]
    frame = launch.frame(paths, height=700)
    assert frame.url.startswith("http://localhost:") and launch.frame(paths, height=700) == frame
    assert 'height="700"' in frame._repr_html_() and frame.url in frame._repr_html_()
    # The token is the path: there may be no cookies in a frame.
    with urlopen(frame.url) as answer:
        assert b"overlapscope" in answer.read()
        assert "http://localhost:*" in answer.headers["Content-Security-Policy"]
    address = urlsplit(frame.url)
    for path in ("/", "/overview", "/_dash-layout", f"/{'x' * (len(address.path) - 2)}/"):
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"http://{address.netloc}{path}")


def test_on_a_hub_the_frame_goes_through_its_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/eve/")
    frame = launch.frame([TRACES / "streamed0_pinned1.json.gz"], height=700)
    assert frame.url.startswith("/user/eve/proxy/") and "/?token=" in frame.url


# -- the token ------------------------------------------------------------------------------------


def test_each_server_makes_up_a_token_unless_the_environment_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OVERLAPSCOPE_TOKEN", raising=False)
    assert len(own_token()) >= 32 and own_token() != own_token()
    monkeypatch.setenv("OVERLAPSCOPE_TOKEN", "")
    assert len(own_token()) >= 32
    monkeypatch.setenv("OVERLAPSCOPE_TOKEN", "long enough and known")
    assert own_token() == "long enough and known"


def test_a_token_that_can_be_guessed_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVERLAPSCOPE_TOKEN", "secret")
    assert main(["dashboard", TRACE, "--no-open"]) == 2
    assert "OVERLAPSCOPE_TOKEN has 6 characters, which can be guessed; give it 16 or more" in capsys.readouterr().err


def test_the_browser_is_opened_without_the_token_in_its_arguments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("overlapscope.dashboard.upload.own_directory", lambda: tmp_path)
    monkeypatch.setenv("DISPLAY", ":0")
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    launch.open_browser("http://127.0.0.1:8050/?token=abc&x")
    assert opened == [(tmp_path / "open.html").as_uri()]
    assert "url=http://127.0.0.1:8050/?token=abc&amp;x" in (tmp_path / "open.html").read_text()


# -- the command ----------------------------------------------------------------------------------

TRACE = str(TRACES / "streamed0_pinned0.json.gz")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_serves_until_it_is_stopped_which_is_not_a_failure(how: signal.Signals) -> None:
    with serve(TRACE) as served:
        assert b"overlapscope" in ask(served, "/").body
        served.process.send_signal(how)
        assert served.process.wait(timeout=60) == 0
    assert served.lines[1:] == ["Stopped."]


def test_a_port_that_is_taken_is_an_error_only_where_it_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(TRACE) as served:
        assert main(["dashboard", TRACE, "--no-open", "--port", str(served.port)]) == 2
        error = capsys.readouterr().err
        assert f"port {served.port} of 127.0.0.1 cannot be had" in error and "choose another with --port" in error
    app = flask.Flask("one")
    with socket.socket() as taken:
        # Another process may already use the usual port.
        with suppress(OSError):
            taken.bind(("127.0.0.1", DEFAULT_PORT))
            taken.listen()
        listening = Listening(app, host="127.0.0.1", port=None, base="/", body_bytes=lambda request: 1)
        assert listening.port not in (0, DEFAULT_PORT)


def test_below_a_path_it_serves_whether_a_proxy_passes_the_path_on_or_not() -> None:
    with serve(TRACE, "--base-path", "tools/scope") as served:
        assert urlsplit(served.address).path == "/tools/scope/"
        sources = re.findall(r'(?:src|href)="([^"]+)"', ask(served, "/tools/scope/").text)
        assert sources and all(source.startswith("/tools/scope/") for source in sources)
        script = next(source for source in sources if ".js" in source)
        assert ask(served, script).body == ask(served, script.removeprefix("/tools/scope")).body != b""


def test_a_missing_trace_is_reported_before_anything_is_served(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["dashboard", str(tmp_path), "--no-open"]) == 2
    assert "no trace in this directory" in capsys.readouterr().err
    assert main(["dashboard", str(tmp_path / "*.json"), "--no-open"]) == 2


def test_a_report_is_shown_only_with_its_traces(tmp_path: Path) -> None:
    shutil.copy(TRACE, tmp_path / "t.json.gz")
    report = ov.analyze(ov.load(tmp_path / "t.json.gz"))
    (tmp_path / "t.json.gz").unlink()
    with pytest.raises(UsageError, match=r"t\.json\.gz: there is no such file here"):
        ov.show(report)


def test_two_traces_are_opened_beside_one_another_where_that_is_asked_for() -> None:
    before, after = (SAMPLES / name for name in ("training_naive.json.gz", "training_prefetched.json.gz"))
    _, url = launch.launch([before, after], port=0, compare=True)
    place = parse("/", urlsplit(url).path, urlsplit(url).query)
    assert place.page == "compare"
    assert None not in (place.trace, place.other) and place.trace != place.other
    with pytest.raises(UsageError, match="takes two traces"):
        launch.launch([before], port=0, compare=True)


def test_the_overview_answers_before_the_timeline_is_built() -> None:
    """A large trace's timeline takes seconds; the browser asks for it once the verdict is on the screen."""
    library = Library([TRACES / "gpt2_train.json.gz"])
    opened = library.wait("gpt2_train")
    context = PageContext(UrlState(trace="gpt2_train"), library, opened)
    device = context.device
    assert device is not None
    assert "overview-timelines" in str(overview.layout(context, device))
    assert "lanes" not in vars(opened)
    assert opened.bounds_ns == (opened.lanes.origin_ns, opened.lanes.origin_ns + opened.lanes.end_ns)
