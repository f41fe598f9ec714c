"""Tests of `overlapscope hta`: HTA's analyses by name, in every format, and messages if there is no result."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import site
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("hta", reason="runs HolisticTraceAnalysis")

from overlapscope.base.extras import how_to_install
from overlapscope.commands import main
from overlapscope.plugins.hta.catalog import ANALYSES, HtaOptions
from overlapscope.plugins.hta.command import listing
from overlapscope.plugins.hta.document import MAX_ROWS, HtaFailed, HtaResult, HtaTable, document, run, to_csv
from overlapscope.render import markdown, terminal
from tests.plugins.hta.recordings import TRACES, rewritten

ROOT = Path(__file__).parents[4]
PIPELINE = str(TRACES / "pipeline_3stream.json.gz")


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["hta", *arguments]) == 0
    printed = capsys.readouterr()
    assert not printed.err
    return printed.out


@pytest.mark.parametrize("arguments", [[], ["--list"]])
def test_the_analyses_are_listed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    listed = [line.split()[0] for line in output(capsys, *arguments).splitlines()]
    assert listed == ["name", *ANALYSES]


def test_every_analysis_of_hta_is_there() -> None:
    from hta.trace_analysis import TraceAnalysis

    computed = {name for name in vars(TraceAnalysis) if not name.startswith("_")}
    # Parts of others, and what draws.
    computed -= {"get_profiler_steps", "get_queue_length_summary_from_time_series", "generate_trace_with_counters"}
    assert {analysis.method for analysis in ANALYSES.values()} == computed - {"overlay_critical_path_analysis"}


def test_a_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    printed = output(capsys, "temporal", str(TRACES / "ddp"))
    assert printed.startswith("HTA temporal (") and "ranks 0, 1" in printed
    # The last digit of HTA's idle time depends on the processor (tests/plugins/hta/evaluation/test_hta_docs.py).
    assert re.search(r"22,73[12]\b", printed) and re.search(r"17,52[78]\b", printed)
    assert all(len(line) <= 80 for line in printed.splitlines())


def test_json_has_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(output(capsys, "idle", PIPELINE, "--format", "json"))
    assert document["schema_version"] == 1 and document["analysis"] == "idle" and document["ranks"] == [0]
    idle, gaps = document["tables"]
    assert "idle_category" in idle["columns"] and len(idle["rows"]) >= 6
    assert all(len(row) == len(gaps["columns"]) for row in gaps["rows"])
    # JSON has no number for the deviation of a single gap.
    assert "NaN" not in json.dumps(document)


def test_csv_of_one_table_has_one_header(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.reader(io.StringIO(output(capsys, "launches", PIPELINE, "--format", "csv"))))
    assert rows[0] == ["correlation", "cpu_duration", "gpu_duration", "launch_delay"]
    assert len(rows) > MAX_ROWS


def test_markdown_of_a_long_table_says_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    printed = output(capsys, "launches", PIPELINE, "--format", "markdown")
    head, rule = 1, 1
    assert printed.count("\n| ") == head + rule + MAX_ROWS and "rows more" in printed


def test_a_file_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "queue.csv"
    assert main(["hta", "queue", PIPELINE, "--format", "csv", "-o", str(path)]) == 0
    assert path.read_text().startswith("rank,stream,")
    assert main(["hta", "queue", PIPELINE, "--format", "csv", "-o", str(path)]) == 2
    assert "already exists" in capsys.readouterr().err
    recording = tmp_path / "in.json.gz"
    recording.write_bytes(Path(PIPELINE).read_bytes())
    assert main(["hta", "queue", str(recording), "--force", "-o", str(recording)]) == 2
    assert "is also an input" in capsys.readouterr().err
    assert recording.read_bytes() == Path(PIPELINE).read_bytes()


def test_the_size_of_hta_is_stated_before_it_is_installed() -> None:
    assert "JupyterLab" in how_to_install("hta")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["temporl", PIPELINE], "did you mean 'temporal'"),
        (["temporal"], "no trace is named"),
        (["sequences", PIPELINE], "name them with --operator"),
        (["stragglers", PIPELINE], "two ranks or more"),
        (["stragglers", str(TRACES / "ddp")], "overlapscope ranks"),
        (["critical-path", PIPELINE, "--annotation", "no_such"], "rank 0 has 0 ranges with 'no_such'"),
        (["critical-path", PIPELINE, "--instance", "99"], "none with the number 99"),
        (["critical-path", PIPELINE, "--overlay", "/dev/null"], "/dev/null: cannot be created"),
    ],
)
def test_what_makes_no_sense_is_reported(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hta", *arguments]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err and not printed.out


def test_where_rounding_makes_hta_give_up_nanoseconds_help(capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(TRACES / "known_causes" / "launch_bound.json.gz")
    assert main(["hta", "temporal", trace]) == 2
    assert "failed (AssertionError). HTA rounds times" in capsys.readouterr().err
    assert "Temporal breakdown" in output(capsys, "temporal", trace, "--nanoseconds")


def test_where_hta_gives_up_on_whole_microseconds_nothing_is_promised(tmp_path: Path) -> None:
    # HTA fails without a launch that it recognizes.
    trace = rewritten("known_causes/launch_bound_graph", tmp_path)
    with pytest.raises(HtaFailed, match=r"get_aten_op_kernels_and_delay failed \(KeyError") as caught:
        run("aten", trace)
    assert "rounds" not in str(caught.value)


def test_what_a_trace_lacks_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert "these traces have none" in output(capsys, "queue-full", PIPELINE)


def test_the_directory_of_an_overlay_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = tmp_path / "new" / "drawn"
    output(capsys, "critical-path", PIPELINE, "--overlay", str(drawn))
    assert list(drawn.iterdir())


def test_names_from_the_trace_are_harmless(tmp_path: Path) -> None:
    name = '=HYPERLINK("http://x.y") | <b>\x1b[31m'

    def change(event: dict[str, object]) -> dict[str, object]:
        return event | {"name": name} if event.get("cat") == "kernel" else event

    result = run("kernels", rewritten("pipeline_3stream", tmp_path, change=change))
    drawn = terminal.render(document(result, width=200), width=200), markdown.render(document(result)), to_csv(result)
    assert not any("\x1b" in row for row in drawn)
    assert "<b>" not in drawn[1]
    cells = [cell for row in csv.reader(io.StringIO(drawn[2])) for cell in row]
    assert not any(cell.startswith("=") for cell in cells) and any(cell.startswith("'=HYPERLINK") for cell in cells)


def test_a_wide_table_is_cut_between_columns() -> None:
    columns = ("rank", "name", *(f"figure_of_some_length_{number}" for number in range(12)))
    table = HtaTable(title="Wide", columns=columns, rows=((0, "x" * 90, *range(12)),))
    result = HtaResult(analysis="made", hta="none 0", ranks=(0,), tables=(table,))
    lines = terminal.render(document(result, width=80), width=80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert all(any(column in line.split() for line in lines) for column in columns)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_list_of_analyses_is_whole_in_a_narrow_terminal(width: int) -> None:
    drawn = terminal.render(listing(), width=width)
    assert max(map(len, drawn.splitlines())) <= width and "…" not in drawn
    assert "get_comm_comp_overlap" in drawn if width == 100 else "method" not in drawn


def test_operators_are_passed_to_the_analysis() -> None:
    result = run("sequences", TRACES / "ddp" / "rank0.json.gz", HtaOptions(operator="aten::linear"), nanoseconds=True)
    (table,) = result.tables
    assert str(table.rows[0][0]).startswith("aten::linear|")


# -- without HTA


def without_hta(tmp_path: Path, code: str, *also: str) -> subprocess.CompletedProcess[str]:
    """Run a program with all packages of this environment except HTA, and with the distributions in `also`."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for folder in site.getsitepackages():
        for entry in Path(folder).iterdir():
            if not entry.name.lower().startswith(("hta", "traceinsight", "holistictrace")):
                (packages / entry.name).symlink_to(entry)
    for name in also:
        about = packages / f"{name}-9.9.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    start = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; sys.path.append({str(packages)!r})\n"
    command = [sys.executable, "-S", "-c", start + code]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)


def test_without_hta_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    code = f"from overlapscope.commands import main; sys.exit(main(['hta', 'temporal', {PIPELINE!r}]))"
    done = without_hta(tmp_path, code)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(
        "overlapscope: error: this needs HolisticTraceAnalysis. Install it with `pip install "
    )
    assert "[hta]" in done.stderr and "JupyterLab" in done.stderr and done.stderr.count("\n") == 1


def test_the_analyses_are_listed_without_hta(tmp_path: Path) -> None:
    done = without_hta(tmp_path, "from overlapscope.commands import main; sys.exit(main(['hta']))")
    assert done.returncode == 0 and "temporal" in done.stdout


def test_both_of_htas_packages_at_once_are_refused(tmp_path: Path) -> None:
    code = "import overlapscope as ov; ov.hta.trace_analysis([])"
    done = without_hta(tmp_path, code, "traceinsight", "HolisticTraceAnalysis")
    assert "each overwrites files of the other" in done.stderr.splitlines()[-1]
