"""Tests of `overlapscope whatif`: its output, its files, its refusals, and the text of predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import overlapscope as ov
from overlapscope.catalog.interventions import INTERVENTIONS
from overlapscope.commands import main
from overlapscope.errors import UsageError
from overlapscope.inputs import CALIBRATION, read_calibration
from overlapscope.prediction.calibration import shipped
from overlapscope.prediction.document import document, headline
from overlapscope.prediction.result import AppliedChange, Assumption, Constant, Estimate, Fidelity, Figure, Rung, WhatIf
from overlapscope.render import html, markdown, terminal
from tests.support.schemas import validate

TRACES = Path(__file__).parents[3] / "traces"
PAGEABLE = str(TRACES / "streamed0_pinned0.json.gz")
PIPELINE = str(TRACES / "pipeline_1stream.json.gz")
DDP = str(TRACES / "ddp")
HOSTILE = "a\x1b[31mRED\x1b]0;t\x07[bold]b[/bold]|p|`t`<script>x</script>\n# h\r\u202e@you http://x.y"
MS = 1_000_000


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def text(result: WhatIf, *, width: int, encoding: str = "utf-8") -> str:
    return terminal.render(document(result), width=width, encoding=encoding)


def md(result: WhatIf) -> str:
    return markdown.render(document(result))


def estimate(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    """Of milliseconds."""
    ends = (value, value if low is None else low, value if high is None else high)
    return Estimate(**dict(zip(("value", "low", "high"), (round(end * MS) for end in ends), strict=True)))


def change(id: str = "pin", argument: str | None = None, *, touched: int = 96, name: str = "") -> AppliedChange:
    return AppliedChange(
        intervention=id,
        argument=argument,
        title=f"host memory pinned{name}",
        touched=touched,
        what=f"96 copies of 4.9 GB take 88 ms instead of 402 ms{name}.",
        advice=f"Pin it once.{name}\n- and keep it",
        where=(f"train.py(33): load{name}",),
    )


def predicted(name: str = "", **fields: Any) -> WhatIf:
    """Return a prediction of 31.2 ms instead of 72.1 ms, with `name` wherever a trace could have it."""
    whole: dict[str, Any] = {
        "source": f"traces/x{name}.json",
        "rank": None,
        "device": 0,
        "device_name": f"NVIDIA H200{name}",
        "steps": 4,
        "baseline_step_ns": round(72.4 * MS),
        "plain": None,
        "recorded_step_ns": round(72.4 * MS),
        "recorded_predicted_step_ns": round(31.2 * MS),
        "replayed_step_ns": round(72.1 * MS),
        "predicted_step_ns": estimate(31.2, 30.1, 65),
        "gain_ns": estimate(40.9, 7.1, 42),
        "gain_pct": 56.73,
        "buckets": {
            "compute_ns": Figure(measured=12 * MS, predicted=estimate(12)),
            "exposed_comm_ns": Figure(measured=0, predicted=estimate(0)),
            "exposed_copy_ns": Figure(measured=60 * MS, predicted=estimate(18, 17, 52)),
        },
        "interventions": (change(name=name), change("no-sync", f"cudaStreamSynchronize{name}", touched=0)),
        "assumptions": (
            Assumption(intervention="side-stream", text="Nothing reads the copy.", cost_ns=None, shown=True),
            Assumption(intervention="pin", text=f"It can be pinned.{name}", cost_ns=round(3.3 * MS), shown=False),
        ),
        "constants": (
            Constant(name="pinned copy of 50 MB to the GPU", value=55.123, unit="GB/s", origin="calibration"),
            Constant(name="launch latency", value=5123, unit="ns", origin="table"),
        ),
        "replay": Fidelity(
            valid=True,
            reasons=(f"A wait of {name} is doubtful.",),
            step_error_pct=0.41,
            start_error_ns=12_300,
            launch_latency_ns=5_100,
            unexplained_ns=3_200,
        ),
    }
    return WhatIf(**whole | fields)


NOTHING: dict[str, Any] = {
    "replay": Fidelity(
        valid=False,
        reasons=("A wait is doubtful.",),
        step_error_pct=0.0,
        start_error_ns=0,
        launch_latency_ns=5_100,
        unexplained_ns=0,
    ),
    **dict.fromkeys(("predicted_step_ns", "gain_ns", "gain_pct")),
    **dict.fromkeys(("interventions", "assumptions", "constants"), ()),
    "buckets": {},
}
LADDER = (
    Rung(interventions=(), added="", predicted_step_ns=estimate(72.1), gain_ns=0),
    Rung(interventions=("pin",), added="pin", predicted_step_ns=estimate(31.2, 30.1, 65), gain_ns=round(40.9 * MS)),
)


# -- how a prediction reads


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "A step would take 31.20 ms instead of 72.10 ms (56.7% less; saves 7.1 to 42.0 ms)."),
        ({"steps": 0}, "The recorded part would take 31.20 ms instead of 72.10 ms (56.7% less; saves "),
        (
            {"predicted_step_ns": estimate(80), "gain_ns": estimate(-7.9), "gain_pct": -10.957},
            "A step would take 80.00 ms instead of 72.10 ms (11.0% more).",
        ),
        (
            {"predicted_step_ns": estimate(72.101), "gain_ns": estimate(-0.001), "gain_pct": -0.001},
            "A step would take as long as now, 72.10 ms.",
        ),
        (
            {"predicted_step_ns": estimate(72.1, 70, 80), "gain_ns": estimate(0, -7.9, 2.1), "gain_pct": 0.0},
            "A step would take as long as now, 72.10 ms (between 70.00 and 80.00 ms).",
        ),
        ({"interventions": (change(touched=0),)}, "A step would take as long as now: these changes do not"),
        ({"interventions": ()}, "The simulation takes 72.10 ms, the recording 72.40 ms, so changes can be predicted."),
        ({"interventions": (), "ladder": LADDER[:1]}, "A step takes 72.10 ms, and no known change makes it shorter."),
        (NOTHING, "No prediction: a simulation of this recording does not match it."),
    ],
)
def test_the_first_sentence_is_the_answer(fields: dict[str, Any], expected: str) -> None:
    result = predicted(**fields)
    assert headline(result).startswith(expected)
    for shown in (text(result, width=120), md(result).replace("\\", "")):
        assert expected in shown


def test_everything_that_the_prediction_rests_on_is_shown() -> None:
    lines = text(predicted(ladder=LADDER), width=120).splitlines()
    shown = [" ".join(line.split()) for line in lines]
    for expected in (
        "x.json, NVIDIA H200, device 0; average of 4 steps",
        "now 72.10",
        "+ pin 31.20 30.10 to 65.00 40.90 56.7",
        "compute 12.00 12.00",
        "exposed copy 60.00 18.00 17.00 to 52.00",
        "step 72.40 31.20 30.10 to 65.00",
        "1. pin: host memory pinned",
        "96 copies of 4.9 GB take 88 ms instead of 402 ms.",
        "At train.py(33): load",
        "It can be pinned. pin 3.30 ms more",
        "Nothing reads the copy. side-stream shown by the trace",
        "pinned copy of 50 MB to the GPU 55.1 GB/s calibration",
        "launch latency 5.1 us H200 table",
        "Without changes, the replay takes 72.10 ms for a step; the recording took 72.40 ms (0.4% off).",
        "GPU ops start within 12.3 us of their recorded start; the tolerance is 5.10 us.",
        "Caveat: A wait of is doubtful.",
    ):
        assert expected in shown
    assert not any("exposed comm" in line for line in shown), "of nothing there is nothing to say"
    assert sum("Pin it once." in line for line in shown) == 1, "what changed nothing needs no code"


def test_what_does_not_apply_says_what_the_recording_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", PAGEABLE, "--two-way"]) == 0
    shown = capsys.readouterr().out
    assert "these changes do not apply to this recording" in shown
    assert "Not applicable: the recording has no streams with copies in both directions." in " ".join(shown.split())


@pytest.mark.parametrize("args", [["--best"], ["--pin"], ["--pin", "--side-stream", "--graph"]], ids=" ".join)
def test_the_answer_and_its_evidence_are_one_screen(
    args: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["whatif", "traces/further/training/naive.json.gz", *args]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 45
    assert any(line.startswith("Add -v for ") for line in lines[-3:])


def test_nothing_but_the_reasons_is_shown_where_nothing_is_predicted() -> None:
    shown = text(predicted(**NOTHING), width=120)
    answer, subject, empty, reason, remedy, *_ = shown.splitlines()
    assert answer.startswith("No prediction") and "median" not in subject and not empty
    assert reason == "- A wait is doubtful." and remedy.startswith("- With PyTorch on a GPU, recording again may help")
    assert "measured" not in shown and "at most" not in shown and "n/a" not in shown
    assert "- A wait is doubtful." in md(predicted(**NOTHING))


def test_the_changes_stand_in_the_order_of_the_ladder() -> None:
    rungs = [(), ("pin",), ("no-sync x", "pin")]
    ladder = [Rung(interventions=rung, added="", predicted_step_ns=estimate(1), gain_ns=0) for rung in rungs]
    result = predicted(interventions=(change("no-sync", "x"), change("pin")), ladder=tuple(ladder))
    shown = text(result, width=120)
    assert shown.index("1. pin") < shown.index("2. no-sync x")


def test_what_has_no_cost_is_said_to_be_outside_the_interval() -> None:
    asked = Assumption(intervention="pin", text="It can be pinned.", cost_ns=None, shown=False)
    shown = " ".join(text(predicted(assumptions=(asked,)), width=120).split())
    assert "It can be pinned. pin may not be possible" in shown
    assert "is possible at all" not in text(predicted(), width=120), "what is shown needs no interval"


def test_code_in_advice_is_code_in_markdown() -> None:
    advised = msgspec.structs.replace(change(), advice="Copy under `with torch.cuda.stream(x):`, <b>.")
    shown = md(predicted(interventions=(advised,)))
    assert "`with torch.cuda.stream(x):`" in shown and "\\<b\\>" in shown


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_asked_and_no_word_is_cut(width: int) -> None:
    shown = text(predicted(ladder=LADDER), width=width)
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    for word in ("calibration", "predicted", "side-stream"):
        assert word in shown


def test_hostile_names_do_no_harm() -> None:
    result = predicted(HOSTILE, ladder=LADDER)
    for shown in (text(result, width=100), md(result)):
        assert all(character == "\n" or character.isprintable() for character in shown)
    for drawn in (md(result), html.render(document(result))):
        assert "<script>x" not in drawn
    assert "&lt;script&gt;x&lt;/script&gt;" in html.render(document(result))
    assert text(result, width=100, encoding="ascii").isascii()


# -- the command


def test_a_change_is_predicted_as_text_markdown_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", PAGEABLE, "--pin", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main(["schema", "whatif"]) == 0
    validate(document, json.loads(capsys.readouterr().out))
    result = msgspec.convert(document, WhatIf)
    assert [intervention.intervention for intervention in result.interventions] == ["pin"] and result.interventions[
        0
    ].touched > 0
    assert result.gain_ns is not None and result.gain_ns.value > 0
    assert result == ov.whatif(ov.load(PAGEABLE), ["pin"])
    for format in ("text", "markdown", "html"):
        assert main(["whatif", PAGEABLE, "--pin", "--format", format]) == 0
        assert headline(result) in capsys.readouterr().out.replace("\\", "")


def test_asked_for_nothing_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", PAGEABLE]) == 0
    shown = capsys.readouterr().out
    assert "so changes can be predicted" in shown and "Add -v for fidelity of the replay." in shown
    assert all(f"--{intervention}" in shown for intervention in INTERVENTIONS) and "--graph [RANGE]" in shown


def test_the_best_changes_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", PAGEABLE, "--best"]) == 0
    shown = capsys.readouterr().out
    assert "Savings, one change added at a time" in shown and "+ " in shown and "Changes" in shown


def test_the_predicted_timeline_is_written_and_analysed_as_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "predicted.json.gz"
    assert main(["whatif", PIPELINE, "--side-stream", "--timeline", str(target), "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == f"Wrote {target}\n"
    document = msgspec.json.decode(captured.out, type=WhatIf)
    [device] = ov.analyze(ov.load(target)).devices
    assert document.predicted_step_ns is not None
    assert main(["analyze", str(target)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "predicted by overlapscope whatif (side-stream)" in shown and "enable_cuda_sync_events" not in shown
    assert device.per_step is not None
    assert device.per_step.span_ns == pytest.approx(document.predicted_step_ns.value, rel=0.01)
    predicted_buckets = {name: bucket.predicted.value for name, bucket in document.buckets.items()}
    assert msgspec.structs.asdict(device.per_step.buckets) == predicted_buckets
    assert main(["whatif", PIPELINE, "--side-stream", "--timeline", str(target)]) == 2
    assert "--force" in capsys.readouterr().err


@pytest.mark.parametrize("format", ["text", "json", "markdown", "html"])
def test_the_report_goes_to_a_file_and_the_timeline_to_another(
    format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, timeline = tmp_path / "report", tmp_path / "predicted.json"
    asked = ["whatif", PAGEABLE, "--pin", "--format", format, "-o", str(report)]
    assert main([*asked, "--timeline", str(timeline)]) == 0
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == f"Wrote {report}\nWrote {timeline}\n"
    begins = {
        "text": "A step would take",
        "json": '{\n  "kind": "whatif"',
        "markdown": "# overlapscope",
        "html": "<!doc",
    }
    assert report.read_text("utf-8").startswith(begins[format])
    assert "traceEvents" in json.loads(timeline.read_text())
    assert main([*asked, "--timeline", str(report), "--force"]) == 2
    assert "is the output of both report and timeline; name two files" in capsys.readouterr().err


def test_an_html_report_of_a_prediction_needs_no_charts() -> None:
    drawn = html.render(document(predicted(ladder=LADDER)))
    assert drawn.startswith("<!doctype html>") and "packed-plotly" not in drawn
    for expected in (
        "31.20 ms instead of 72.10 ms",
        "Savings, one change added at a time",
        "Pin it once.",
        "launch latency",
    ):
        assert expected in drawn


def test_the_predicted_timeline_names_the_memory_that_copies_would_use(tmp_path: Path) -> None:
    target = tmp_path / "predicted.json"
    assert main(["whatif", PAGEABLE, "--pin", "--timeline", str(target)]) == 0
    copies = [event for event in json.loads(target.read_text())["traceEvents"] if event.get("cat") == "gpu_memcpy"]
    assert {copy["name"] for copy in copies} == {"Memcpy HtoD (Pinned -> Device)"}


def test_where_the_replay_explains_nothing_the_exit_code_is_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from overlapscope.prediction import predict

    trace = ov.load(PAGEABLE)
    refused = predict.Prediction(result=predicted(**NOTHING), before=trace, expected=None)
    monkeypatch.setattr(predict, "predict", lambda *_, **__: refused)
    target = tmp_path / "predicted.json"
    assert main(["whatif", PAGEABLE, "--pin", "--timeline", str(target)]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("No prediction") and "is doubtful" in captured.out
    assert not target.exists()


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([DDP, "--pinned"], "unrecognized arguments: --pinned"),
        ([PAGEABLE, "--pinn"], "unrecognized arguments: --pinn (did you mean '--pin'?)"),
        ([PAGEABLE, "--no-sync"], "expected one argument"),
        (["--graph", PAGEABLE], "is a file, not a RANGE; write TRACE first, or --graph=RANGE"),
        ([PAGEABLE, "--best", "--pin"], "leave out --best or --pin"),
        ([PAGEABLE, "--no-sync", "cudaEventSynchronise"], "(did you mean 'cudaEventSynchronize'?); blocking calls: "),
        ([PIPELINE, "--graph", "forward"], "there is no range 'forward'; ranges: none but the steps."),
        ([PAGEABLE, "--pin", "--device", "7"], "there is no device 7; devices that did anything: 0."),
        ([PAGEABLE, "--pin", "--calibration", PAGEABLE], "is not a calibration"),
        (["nowhere.json", "--pin"], "nowhere.json: the file does not exist"),
    ],
)
def test_wrong_usage_is_reported_in_a_sentence(
    args: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and expected in " ".join(captured.err.split()) and "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("pin", r"interventions are a list, even of one: \['pin'\]"),
        (["no-sync cudaEventSynchronise"], r"did you mean 'cudaEventSynchronize'\?"),
        (["graph forward"], "there is no range 'forward'"),
    ],
)
def test_python_refuses_what_the_command_does(asked: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        ov.whatif(ov.load(PIPELINE if asked == ["graph forward"] else PAGEABLE), asked)


# -- which calibration


def test_the_laboratorys_calibration_is_taken_where_it_is_of_the_same_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = ov.load(PAGEABLE)
    monkeypatch.chdir(tmp_path)
    assert read_calibration(None, trace) is None
    CALIBRATION.parent.mkdir()
    for gpu, applies in (("NVIDIA H200", True), ("NVIDIA A100", False)):
        calibration = msgspec.structs.replace(shipped(), gpu=gpu)
        CALIBRATION.write_bytes(msgspec.json.encode(calibration))
        assert read_calibration(None, trace) == (calibration if applies else None)
    with pytest.raises(UsageError, match=r"is for NVIDIA A100, but .* was recorded on NVIDIA H200"):
        read_calibration(CALIBRATION, trace)
