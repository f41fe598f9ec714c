"""Tests of the laboratory's results: compared with declarations and publications, drawn, and renewed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from benchmarks.renew_laboratory import collect, renewed
from overlapscope import inputs
from overlapscope.commands import main
from overlapscope.documents.model import Document
from overlapscope.plugins.laboratory import command
from overlapscope.plugins.laboratory.comparison import ExperimentComparison, check_truth, compare, tally
from overlapscope.plugins.laboratory.document import digits, document
from overlapscope.plugins.laboratory.experiment import Experiment, Truth, Variant, WrongResults
from overlapscope.plugins.laboratory.results import (
    ExperimentResult,
    Link,
    Machine,
    Results,
    TimeSpread,
    VariantResult,
    read_results,
    write_results,
)
from overlapscope.plugins.laboratory.runner import analyse
from overlapscope.reading.samples import SAMPLES
from overlapscope.render import html, markdown, terminal
from overlapscope.rules.findings import find_all
from tests.support.recordings import analysis_of

TRACES = Path("traces")

MACHINE = Machine(gpus=("GPU <b>",), torch="2", python="3", system="Linux", link=Link(h2d_gb_per_s=55.0))
HOSTILE = "a\x1b[31m|`x`</script><script>alert(1)</script>"


def variant(name: str, recording: str | None = None, **facts: object) -> VariantResult:
    """Return a variant's result, with the analysis of a shipped recording."""
    paths = [TRACES / recording] if recording else []
    result = VariantResult(
        name=name,
        shows="It is shown.",
        parameters={},
        truth=Truth(),
        published={},
        wrong_expected=None,
        status="ok",
        analyses=analyse(paths, TRACES),
        traces=tuple(path.relative_to(TRACES).as_posix() for path in paths),
    )
    return msgspec.structs.replace(result, **facts)


def experiment(*results: VariantResult, **facts: object) -> ExperimentResult:
    result = ExperimentResult(
        name="made",
        title="Made up",
        shows="Something is shown.",
        published_on="",
        faster=(),
        recorded="",
        gpus=1,
        ranks=1,
        warmup_steps=2,
        recorded_steps=3,
        scale="paper",
        sizes={},
        sizes_as_published=True,
        date="2026-11-21",
        machine=MACHINE,
        variants=results,
    )
    return msgspec.structs.replace(result, **facts)


def wall(median: float, iqr: float = 0.01) -> TimeSpread:
    return TimeSpread(median=median, iqr=iqr, n=10)


def compared(*experiments: ExperimentResult) -> tuple[ExperimentComparison, ...]:
    return compare(Results(experiments=experiments))


def test_the_order_of_variants_is_held_against_ours_and_the_published() -> None:
    quick = variant("quick", wall_ms=wall(1.0), published={"wall_ms": 5.0})
    slow = variant("slow", wall_ms=wall(2.0), published={"wall_ms": 4.0})
    pairs = (("quick", "slow"), ("slow", "quick"))
    [comparison] = compared(experiment(quick, slow, faster=pairs))
    assert [(claim.holds, claim.published) for claim in comparison.claims] == [(True, False), (False, True)]
    assert "1 against 2 ms" in comparison.claims[0].observed


def test_an_order_within_the_spread_is_said_to_be() -> None:
    pair = (variant("a", wall_ms=wall(1.0, 0.5)), variant("b", wall_ms=wall(1.1)))
    [comparison] = compared(experiment(*pair, faster=(("a", "b"),)))
    assert "within their spread" in comparison.claims[0].observed


def test_what_was_not_run_is_unknown_and_not_held() -> None:
    failed = variant("b", status="failed", error="x", wrong_expected="none", truth=Truth(idle="host-sync"))
    [comparison] = compared(experiment(variant("a", wall_ms=wall(1.0)), failed, faster=(("a", "b"),)))
    assert [claim.holds for claim in comparison.claims] == [None, None, None]
    assert all("b failed" in claim.observed for claim in comparison.claims)
    assert tally(comparison.claims)[2] == 3


def test_wrong_results_are_held_against_what_is_expected() -> None:
    results = [
        variant(f"{expected}-{wrong}", wrong_expected=expected, wrong_results=WrongResults(wrong, 10))
        for expected in ("none", "some")
        for wrong in (0, 3)
    ]
    [comparison] = compared(experiment(*results))
    assert [claim.holds for claim in comparison.claims] == [True, False, False, True]


def test_diagnoses_are_held_against_the_truth() -> None:
    right = Truth(exposed_copy="late-issue", idle="host-sync", findings=("late-prefetch",), hidden_copy_pct=(0, 5))
    wrong = Truth(exposed_copy="host-sync", no_findings=("late-prefetch",), hidden_copy_pct=(5, 100))
    recording = "known_causes/late_issue.json.gz"
    [comparison] = compared(experiment(variant("a", recording, truth=right), variant("b", recording, truth=wrong)))
    assert [claim.holds for claim in comparison.claims] == [True] * 4 + [False] * 3


def test_truth_is_checked_on_a_report_as_on_results() -> None:
    analysis = analysis_of(TRACES / "further" / "training" / "naive.json.gz")
    [device] = analysis.result.devices
    stated = Truth(exposed_copy="pageable-memory", idle="data-loading", findings=("pageable-memory",))
    verdicts = list(check_truth(stated, device, [finding.rule for finding in find_all([analysis])]))
    assert [verdict.holds for verdict in verdicts] == [True, False, True]
    assert verdicts[0].observed == "pageable-memory 100%"


def test_a_cause_of_no_time_does_not_hold() -> None:
    analysis = analysis_of(TRACES / "known_causes" / "launch_bound.json.gz")
    [device] = analysis.result.devices
    [verdict] = check_truth(Truth(exposed_copy="same-stream"), device, ())
    assert not verdict.holds and verdict.observed == "none"


def test_every_rank_is_held_against_the_truth() -> None:
    traces = TRACES / "laboratory" / "fsdp_offload" / "offload.traces"
    ranks = analyse([traces / f"rank{rank}.trace.json.gz" for rank in range(2)], TRACES)
    both = variant("both", truth=Truth(findings=("exposed-comm",)), analyses=ranks)
    [comparison] = compared(experiment(both))
    assert [(claim.text[:13], claim.holds) for claim in comparison.claims] == [
        ("both (rank 0)", False),
        ("both (rank 1)", True),
    ]


def test_figures_stand_beside_the_published_ones_with_their_ratios() -> None:
    first = variant("first", wall_ms=wall(2.0), published={"wall_ms": 10.0, "store_ms": 8.0}, figures={"store_ms": 4.0})
    second = variant("second", wall_ms=wall(1.0), published={"wall_ms": 2.0})
    [comparison] = compared(experiment(first, second))
    time, stored = comparison.figures["first"]
    assert (time.ours, time.published, time.ours_ratio, time.published_ratio) == (2.0, 10.0, 1.0, 1.0)
    assert (stored.name, stored.ours, stored.published) == ("store_ms", 4.0, 8.0)
    [time] = comparison.figures["second"]
    assert (time.ours_ratio, time.published_ratio) == (0.5, 0.2)


def test_figures_are_of_what_is_judged() -> None:
    """A recording with a lead-in: figures are of an average step after it, and causes add up to its buckets."""
    [whole] = analysis_of(TRACES / "known_causes" / "healthy_prefetch_running_ahead.json.gz").result.devices
    [judged] = analyse([TRACES / "known_causes" / "healthy_prefetch_running_ahead.json.gz"], TRACES)
    assert whole.lead_in_ns and whole.per_step is not None
    assert (judged.span_ns, judged.buckets) == (whole.per_step.span_ns, whole.per_step.buckets)
    buckets = judged.buckets
    parts = (buckets.compute_ns, buckets.exposed_comm_ns, buckets.exposed_copy_ns, buckets.exposed_other_ns)
    assert sum(parts) + buckets.idle_ns == judged.span_ns
    assert sum(judged.exposed_copy_by_cause.values()) == buckets.exposed_copy_ns
    assert sum(judged.idle_by_cause.values()) == buckets.idle_ns


# -- report ---------------------------------------------------------------------------------------


def made_results() -> Results:
    streams = experiment(
        variant("one_stream", "pipeline_1stream.json.gz", wall_ms=wall(29.4), published={"wall_ms": 178.0}),
        variant("three_streams", "pipeline_3stream.json.gz", wall_ms=wall(14.5)),
        variant("hostile", status="failed", error=HOSTILE, shows=HOSTILE),
        name="pipeline",
        title=HOSTILE,
        published_on=HOSTILE,
        faster=(("three_streams", "one_stream"), ("one_stream", "three_streams")),
    )
    race = experiment(
        variant("race", wrong_expected="some", wrong_results=WrongResults(93, 100), figures={HOSTILE: 1.0}),
        name="race",
        scale="small",
        sizes_as_published=False,
        published_on="elsewhere",
    )
    return Results(experiments=(streams, race))


@pytest.fixture
def reported(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """Return the directory of a report, and the printed lines on its experiments."""
    monkeypatch.setenv("COLUMNS", "100")
    write_results(made_results(), tmp_path)
    shown = ["scenarios", "report", "pipeline", "race", "--results", str(tmp_path)]
    assert main([*shown, "--output", str(tmp_path)]) == 0
    return tmp_path, capsys.readouterr().out


def test_without_a_name_each_variant_has_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    assert main(["scenarios", "report"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [
        variant.name
        for experiment in read_results(SAMPLES / "laboratory").experiments
        for variant in experiment.variants
    ]
    verdicts = ("good", "fair", "poor", "unknown", "n/a")
    variants = [line.split()[0] for line in lines if line.startswith("  ") and line.split()[-1] in verdicts]
    assert variants == names and len(lines) < len(names) + 60
    assert "`overlapscope scenarios report NAME` shows one experiment in full." in lines
    train = experiment(variant("train", "gpt2_train.json.gz"), name="training")
    write_results(Results(experiments=(*made_results().experiments, train)), tmp_path)
    assert main(["scenarios", "report", "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert " failed" in out and re.search("train .* unknown\n", out)
    assert main(["scenarios", "report", "pipelin", "--results", str(tmp_path)]) == 2
    assert "did you mean 'pipeline'" in capsys.readouterr().err


def test_the_report_shows_figures_verdicts_and_whether_they_agree(reported: tuple[Path, str]) -> None:
    for out in (reported[1], (reported[0] / "report.md").read_text().replace("\\", "")):
        text = " ".join(out.replace("|", " ").split())
        for part in (
            "all 2 1 0",
            "one_stream is faster than three_streams: 29.4 against 14.5 ms",
            "pipeline/hostile failed",
            "one_stream 29.40 0.01 10",
            "178.0",
            "one_stream 29.47 20.6 76.2 3.2",
            "93 of 100",
            "compare ratios, not times",
            "Copy-bound: in each step of 29.5 ms, copies run alone for 22.4 ms (76.2%;",
            "Findings: one-way-copies, same-stream",
        ):
            assert part in text, part
    assert max(map(len, reported[1].splitlines())) <= 100


def test_what_the_results_say_cannot_act_in_any_report(reported: tuple[Path, str]) -> None:
    out, markdown, html = reported[1], *((reported[0] / f"report.{end}").read_text() for end in ("md", "html"))
    assert all(character == "\n" or character.isprintable() for character in out + markdown)
    assert "<script>" not in markdown and "\n|`" not in markdown
    assert "<script>alert" not in html and "alert(1)" in html
    assert "\x1b" not in html


class ExternalLinks(HTMLParser):
    """Return the addresses that a page loads from elsewhere, and its unclosed tags."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value for name, value in attrs if name in ("src", "href") and value and value[0] != "#"]
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag


def test_the_html_report_needs_nothing_else(reported: tuple[Path, str]) -> None:
    text = (reported[0] / "report.html").read_text()
    page = ExternalLinks()
    page.feed(text)
    assert page.loaded == [] and page.open == []
    assert text.count('class="plot"') == 1  # The other experiment was not timed.
    assert len(text.encode()) < 2_500_000


def test_the_report_can_be_written_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    write_results(made_results(), tmp_path / "a")
    shown = ["scenarios", "report", "--results", str(tmp_path / "a")]
    assert main([*shown, "--output", str(tmp_path / "new" / "b")]) == 0
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["results.json"]
    assert sorted(file.name for file in (tmp_path / "new" / "b").iterdir()) == ["report.html", "report.md"]
    (tmp_path / "file").touch()
    assert main([*shown, "--output", str(tmp_path / "file")]) == 2
    assert "cannot be created" in capsys.readouterr().err


def test_the_shipped_results_are_shown_and_not_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "samples" / "laboratory"
    shipped.mkdir(parents=True)
    write_results(made_results(), shipped)
    monkeypatch.setattr("overlapscope.reading.samples.SAMPLES", tmp_path / "samples")
    monkeypatch.chdir(tmp_path)
    assert main(["scenarios", "report"]) == 0
    assert "one_stream is faster than three_streams" in " ".join(capsys.readouterr().out.split())
    assert [file.name for file in shipped.iterdir()] == ["results.json"]
    user_results = tmp_path / "overlapscope-laboratory"
    user_results.mkdir()
    write_results(Results(experiments=(experiment(name="mine"),)), user_results)
    assert main(["scenarios", "report"]) == 0
    assert "\nmine\n" in capsys.readouterr().out
    assert (user_results / "report.md").exists()


def test_a_directory_without_results_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "report", "--results", str(tmp_path)]) == 2
    assert "has no results.json" in capsys.readouterr().err


@pytest.mark.parametrize("render", [terminal.render, markdown.render, html.render])
def test_results_of_nothing_but_skipped_variants_are_drawn(render: Callable[[Document], str]) -> None:
    skipped = variant("a", status="skipped", error="it needs a GPU", truth=Truth(exposed_copy="same-stream"))
    comparisons = compared(experiment(skipped, faster=(("a", "gone"),)), experiment(name="empty"))
    drawn = render(document(comparisons))
    assert "there is no such variant" in drawn and "it needs a GPU" in drawn


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "n/a"), (0, "0"), (0.36071, "0.3607"), (25.1, "25.10"), (3327.3, "3,327"), (0.00001234, "0.000012")],
)
def test_digits(value: float | None, text: str) -> None:
    assert digits(value) == text


# -- renewing -------------------------------------------------------------------------------------


def test_results_are_renewed_from_their_recordings_and_files(tmp_path: Path) -> None:
    now = Experiment(
        name="quick",
        title="Quick",
        shows="Nothing.",
        sizes={},
        prepare=lambda: lambda: None,
        variants=(Variant("only", {}, shows="Nothing."), Variant("other", {}, shows="Nothing.")),
    )
    stale = variant("only", "pipeline_1stream.json.gz", wall_ms=wall(1.0))
    fresh = analyse([TRACES / stale.traces[0]], TRACES, 1_000_000)
    stale = msgspec.structs.replace(stale, analyses=(), shows="What it once showed.")
    shutil.copy(TRACES / stale.traces[0], tmp_path)
    before = Results(experiments=(experiment(stale, variant("gone"), name="quick"),))
    [after] = renewed(before, tmp_path, {"quick": now}).experiments
    assert [variant.name for variant in after.variants] == ["only", "other"]
    assert after.variants[0].analyses == fresh
    assert (after.variants[0].shows, after.variants[0].wall_ms) == ("Nothing.", wall(1.0))
    assert (after.machine, after.date) == (MACHINE, "2026-11-21")


def test_recordings_are_judged_by_the_step_that_the_laboratory_timed() -> None:
    timed = experiment(variant("x", wall_ms=wall(28.9123456)), variant("not timed"))
    assert [timed.plain_step_ns(variant) for variant in timed.variants] == [28_912_346, None]
    [analysis] = analyse([TRACES / "pipeline_1stream.json.gz"], TRACES, 28_912_346)
    assert abs(analysis.span_ns - 28_912_346) <= analysis.steps
    assert (
        "in each step of 28.9 ms," in analysis.verdict.text.lower()
        and "about" not in analysis.verdict.text.split(",")[0]
    )


def test_a_timed_iteration_that_the_recording_shortens_is_no_step_of_it() -> None:
    shortened = experiment(variant("x", wall_ms=wall(28.9)), recorded="an iteration sends 100 of the 1000 tensors")
    assert shortened.plain_step_ns(shortened.variants[0]) is None


def test_results_of_several_directories_are_collected_into_one(tmp_path: Path) -> None:
    for name, recording in (("a", "pipeline_1stream.json.gz"), ("b", "pipeline_3stream.json.gz")):
        (tmp_path / name).mkdir()
        shutil.copy(TRACES / recording, tmp_path / name)
        write_results(Results(experiments=(experiment(variant("x", recording), name=name),)), tmp_path / name)
    collect(tmp_path / "a", tmp_path / "b")
    assert [experiment.name for experiment in read_results(tmp_path / "a").experiments] == ["a", "b"]
    assert (tmp_path / "a" / "pipeline_3stream.json.gz").exists()


def test_the_laboratory_writes_constants_where_whatif_looks_for_them() -> None:
    assert command.CALIBRATION == inputs.CALIBRATION
