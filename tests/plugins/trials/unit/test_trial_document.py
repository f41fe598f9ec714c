"""Tests of the output of `overlapscope try`:

On a single screen, in every format, whatever a program's names contain.
"""

from __future__ import annotations

import sys

import msgspec
import pytest

from overlapscope.commands import main
from overlapscope.documents.model import brief
from overlapscope.plugins.trials.document import document, headline
from overlapscope.plugins.trials.result import Edit, LeftOut, Predicted, Recordings, Trial, Tried
from overlapscope.render import html, markdown, terminal

DIFF = """--- a/train.py
+++ b/train.py
@@ -14,7 +14,7 @@
 model = Model().cuda()
 optimizer = torch.optim.AdamW(model.parameters())
-loader = DataLoader(Texts(), batch_size=16)
+loader = DataLoader(Texts(), batch_size=16, num_workers=4, persistent_workers=True)
 for batch in loader:
     step(batch.to("cuda"))
"""


def tried(change: str, value: str = "", *, step_ms: float, added: float, **fields: object) -> Tried:
    pct = 100 * (step_ms / 31.8 - 1)
    facts = {
        "title": "",
        "after": (),
        "predicted_pct": None,
        "verdict": "faster",
        "kept": True,
        "runs": 5,
        "results": "same",
        "races": None,
        "failure": "",
        "edit": Edit(diff="", advice=()),
    } | fields
    return Tried(
        change=change,
        value=value,
        step_ns=round(step_ms * 1e6),
        measured_pct=pct,
        measured_low_pct=pct - 0.4,
        measured_high_pct=pct + 0.4,
        added_pct=added,
        added_low_pct=added - 0.36,
        added_high_pct=added + 0.36,
        **facts,  # type: ignore[arg-type]
    )


TRIAL = Trial(
    program="python train.py --epochs 1",
    device_name="NVIDIA H200",
    ranks=1,
    baseline_step_ns=31_800_000,
    baseline_low_ns=31_700_000,
    baseline_high_ns=31_900_000,
    baseline_runs=5,
    warmup_steps=20,
    timed_steps=94,
    repeatable=True,
    changes=(
        tried("workers", "2", step_ms=30, added=-5.7, kept=False),
        tried("workers", "4", step_ms=28.3, added=-11, predicted_pct=Predicted(value=-12, low=-15, high=-8)),
        tried("pin", step_ms=27, added=-4.6, after=("workers (4)",), races=0, edit=Edit(diff=DIFF, advice=())),
        tried(
            "graph", "compile", step_ms=26, added=-3.7, after=("workers (4)", "pin"), kept=False, results="different"
        ),
        msgspec.structs.replace(
            tried("fused", step_ms=1, added=0, after=("workers (4)", "pin"), kept=False, failure="It ended: boom."),
            step_ns=None,
        ),
    ),
    left_out=(LeftOut(change="prefetch", title="", reason="Its steps copy no batch of a DataLoader to the GPU."),),
    best=2,
    recordings=Recordings(before="before.trace.json.gz", after="after.trace.json.gz"),
    interrupted=False,
    notes=(),
    wall_s=300,
    plain_runs_s=200,
)


def test_the_answer_is_on_one_screen() -> None:
    lines = terminal.render(brief(document(TRIAL)), width=80).splitlines()
    assert len(lines) <= 45
    assert lines[0] == "A step takes 27.0 ms instead of 31.8 ms (-15.1% ± 0.4) with workers (4) and pin."
    text = "\n".join(lines)
    assert "workers (2)" not in text
    assert "workers (2)" in terminal.render(document(TRIAL), width=80)
    assert "+loader = DataLoader(Texts(), batch_size=16, num_workers=4" in text
    assert "Add -v for other values." in text
    assert "overlapscope dashboard --compare before.trace.json.gz" in " ".join(text.split())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"best": None, "changes": ()}, "A step takes 31.8 ms, and no change could be tried."),
        (
            {"best": None, "changes": (msgspec.structs.replace(TRIAL.changes[0], measured_high_pct=0.1),)},
            "A step takes 31.8 ms, and none of the changes that were tried makes it shorter for sure.",
        ),
        (
            {"best": None, "changes": (msgspec.structs.replace(TRIAL.changes[0], results="different"),)},
            "A step takes 31.8 ms. It is shorter with workers (2), but not recommended, because the results are "
            "different.",
        ),
        (
            {"best": None, "changes": (msgspec.structs.replace(TRIAL.changes[0], races=2),)},
            "A step takes 31.8 ms. It is shorter with workers (2), but not recommended, because data races were found.",
        ),
        (
            {"best": None, "changes": (msgspec.structs.replace(TRIAL.changes[0], results="unknown"),)},
            "A step takes 31.8 ms. It is shorter with workers (2), but not recommended, because the results are not "
            "known to be the same.",
        ),
        (
            {
                "best": None,
                "changes": (msgspec.structs.replace(TRIAL.changes[0], measured_pct=-0.3, measured_high_pct=-0.1),),
            },
            "A step takes 31.8 ms, and none of the changes that were tried saves 0.5% of it.",
        ),
        (
            {"best": None, "changes": (msgspec.structs.replace(TRIAL.changes[0], measured_high_pct=-0.1),)},
            "A step takes 31.8 ms, and none of the changes that were tried makes it shorter for sure.",
        ),
        (
            {"best": None, "changes": (msgspec.structs.replace(TRIAL.changes[0], measured_low_pct=None),)},
            "A step takes 31.8 ms. There were too few runs to say which changes help.",
        ),
    ],
)
def test_the_headline_says_why_nothing_is_recommended(changed: dict[str, object], message: str) -> None:
    trial = msgspec.structs.replace(TRIAL, **changed)
    assert headline(trial) == message
    assert message in " ".join(terminal.render(document(trial), width=80).split())


def test_a_gain_that_may_be_chance_is_named_with_what_makes_it_certain() -> None:
    wide = msgspec.structs.replace(TRIAL.changes[0], measured_low_pct=-30.0, measured_high_pct=18.0, runs=2)
    text = " ".join(terminal.render(document(msgspec.structs.replace(TRIAL, best=None, changes=(wide,)))).split())
    assert (
        "The largest gain, -5.7% ± 24.0 with workers (2) in 2 runs, may be chance: runs differ; --minutes gives more "
        "runs." in text.replace("`", "")
    )
    assert "may be chance" not in terminal.render(document(TRIAL))


def test_markdown_and_html_have_the_same_and_names_are_harmless() -> None:
    assert "```diff\n--- a/train.py" in markdown.render(document(TRIAL))
    trial = msgspec.structs.replace(TRIAL, program="python <script>alert(1)</script>\x1b[31m.py", notes=("<b>x</b>",))
    for text in (markdown.render(document(trial)), html.render(document(trial))):
        assert "-15.1% ± 0.4" in text
        assert "<script>alert" not in text
        assert "num_workers=4" in text


def test_a_missing_script_is_reported_before_a_missing_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "libcst", None)
    assert main(["try", "nowhere.py"]) == 2
    assert "nowhere.py: there is no such script." in capsys.readouterr().err
