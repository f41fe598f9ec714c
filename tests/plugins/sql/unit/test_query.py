"""SQL over traces: its figures are the report's, it reads the tables and nothing else, and ends."""

from __future__ import annotations

import csv
import io
import json
import resource
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overlapscope as ov
from overlapscope.analysis.measured import Buckets
from overlapscope.base import extras
from overlapscope.commands import main
from overlapscope.commands.schema import schema_of
from overlapscope.errors import MissingPackage, UsageError
from overlapscope.plugins.sql import engine, tools
from overlapscope.plugins.sql.engine import ask
from overlapscope.plugins.sql.formats import values
from overlapscope.plugins.sql.rows import fill
from overlapscope.plugins.sql.tables import TABLES
from overlapscope.reading import load
from overlapscope.tools import QueriedTraces
from overlapscope.trace.model import Kind
from tests.core.commands.test_cli import HOSTILE, event, write_trace
from tests.support.helpers import MS, TRACES, Op, make_trace, various, with_plain_steps
from tests.support.recordings import report_of, trace_of
from tests.support.schemas import validate
from tests.support.served import Pass, write_server

PIPELINE = TRACES / "pipeline_1stream.json.gz"


def rows_of(job: QueriedTraces, statement: str) -> list[tuple[Any, ...]]:
    return list(values(ask(job, statement)))


@pytest.fixture(scope="module")
def job() -> QueriedTraces:
    return QueriedTraces((trace_of(PIPELINE),))


# -- figures ----------------------------------------------------------------------------------------


def test_figures_are_those_of_the_report() -> None:
    job = QueriedTraces(tuple(map(trace_of, various())))
    traces = job.report.traces
    assert len({trace.source for trace in traces}) == len(various())
    buckets = ", ".join(Buckets.__struct_fields__)
    devices = [(trace.source, device) for trace in traces for device in trace.devices]
    assert rows_of(job, f"SELECT source, device, span_ns, {buckets}, copy_ns, efficiency_pct FROM devices") == [
        (
            source,
            result.device,
            result.span_ns,
            *(getattr(result.buckets, bucket) for bucket in Buckets.__struct_fields__),
            result.overlap.copy_ns,
            result.overlap.efficiency_pct,
        )
        for source, result in devices
    ]
    for table, subject, of in (
        ("exposed_pieces", "exposed-copy", "exposed_copy_by_cause"),
        ("idle_pieces", "idle", "idle_by_cause"),
    ):
        expected = {
            (source, result.device, cause, ns)
            for source, result in devices
            for cause, ns in getattr(result, of).items()
        }
        summed = rows_of(job, f"SELECT source, device, cause, sum(duration_ns) FROM {table} GROUP BY ALL")
        assert {row for row in summed if row[-1]} == {row for row in expected if row[-1]}
        listed = rows_of(job, f"SELECT source, device, cause, time_ns FROM causes WHERE subject = '{subject}'")
        assert {*listed} == expected and len(listed) == len(expected)
    copied: Counter[tuple[Any, ...]] = Counter()
    sizes: dict[tuple[Any, ...], int] = defaultdict(int)
    for source, result in devices:
        for group in result.copies:
            key = (source, result.device, group.direction, group.stream, group.source_kind, group.target_kind)
            copied[key], sizes[key] = group.count, group.bytes or 0
    answers = rows_of(
        job,
        "SELECT source, device, kind, stream, coalesce(source_kind, 'unknown'), coalesce(target_kind, 'unknown'), "
        "count(*), coalesce(sum(bytes), 0) FROM gpu_ops WHERE kind IN ('h2d', 'd2h', 'p2p') GROUP BY ALL",
    )
    assert {row[:6]: row[6:] for row in answers} == {key: (copied[key], sizes[key]) for key in copied}
    exposed = rows_of(job, "SELECT source, device, sum(exposed_ns) FROM copies GROUP BY ALL")
    assert {*exposed} == {
        (source, result.device, result.buckets.exposed_copy_ns) for source, result in devices if result.overlap.copy_ns
    }
    assert rows_of(job, "SELECT source, rule, device, cost_ns, title FROM findings") == [
        (finding.source, finding.rule, finding.device, finding.cost_ns, finding.title)
        for trace in traces
        for finding in job.report.findings
        if finding.source == trace.source
    ]
    assert rows_of(job, "SELECT source, call, thread, count, host_wait_ns, idle_caused_ns FROM stalls") == [
        (source, stall.call, stall.thread, stall.count, stall.host_wait_ns, stall.idle_caused_ns)
        for source, result in devices
        for stall in result.host_stalls
    ]
    assert rows_of(job, "SELECT source, name, span_ns, idle_ns FROM steps") == [
        (source, step.name, step.span_ns, step.buckets.idle_ns) for source, result in devices for step in result.steps
    ]
    assert rows_of(job, "SELECT source, step_ns, low_ns, origin FROM plain_steps") == [
        (source, result.plain.step_ns, result.plain.low_ns, result.plain.origin)
        for source, result in devices
        if result.plain is not None
    ]
    assert rows_of(job, "SELECT source, id, status FROM checks") == [
        (trace.source, check.id, check.status) for trace in traces for check in trace.trust.checks
    ]


def test_a_servers_phases_and_steps_are_those_of_the_report(tmp_path: Path) -> None:
    decode = Pass(["execute_context_0(0)_generation_7(7)"], graph=True, kernels=10, schedule=800)
    path = write_server(tmp_path / "x.json", [Pass(["execute_context_2(600)_generation_0(0)"]), *[decode] * 4])
    job = QueriedTraces((load(path),))
    (device,) = job.report.traces[0].devices
    assert device.served
    assert rows_of(job, "SELECT phase, recorded, tokens_per_s, span_ns, idle_ns FROM phases") == [
        (each.phase, each.recorded, each.tokens_per_s, each.per_step.span_ns, each.per_step.buckets.idle_ns)
        for each in device.served.phases
        if each.per_step is not None
    ]
    by_phase = "SELECT phase, sum(time_ns) FROM phase_causes WHERE subject = 'idle' GROUP BY phase"
    idle = "SELECT phase, idle_ns FROM phases"
    assert dict(rows_of(job, by_phase)) == dict(rows_of(job, idle))
    assert rows_of(job, "SELECT phase, requests, tokens FROM steps") == [("prefill", 2, 600), *[("decode", 7, 7)] * 4]


def test_every_column_of_every_table_says_something_of_some_recording(tmp_path: Path) -> None:
    names = (
        *("gpt2_train", "known_causes/data_loading_stacks", "mixed_workloads/kv_offload_no_sync_events", "ddp/rank0"),
        *("laboratory/fsdp_offload/resident.traces/rank0.trace", "mixed_workloads/model_on_two_devices"),
    )
    timed = with_plain_steps(TRACES / "ddp" / "rank0.json.gz", tmp_path / "timed.json.gz", 40 * MS)
    marks = ("execute_context_2(600)_generation_0(0)", "execute_context_0(0)_generation_7(7)")
    served = write_server(tmp_path / "rank0.1.pt.trace.json", [Pass([mark]) for mark in marks * 3])
    job = QueriedTraces((*(trace_of(TRACES / f"{name}.json.gz") for name in names), load(timed), load(served)))
    silent = {
        f"{table.name}.{column.name}"
        for table in TABLES.values()
        for column, filled in zip(table.columns, fill(table, job).columns, strict=True)
        if filled.null_count == len(filled)
    }
    lines = {"comm_kernels.line", "exposed_comm_pieces.line", "peer_copies.line"}
    assert silent == {"traces.torch", "collectives.sequence", "peer_copies.rank", "phases.comm_compute_pct", *lines}, (
        "none of them has these"
    )


def test_ids_lead_from_table_to_table() -> None:
    job = QueriedTraces((trace_of(TRACES / "mixed_workloads" / "model_on_two_devices.json.gz"),))
    joined = "FROM copies c JOIN gpu_ops o ON o.id = c.gpu_op"
    alike = "c.start_ns = o.start_ns AND c.device = o.device AND c.direction = o.kind"
    ((same, count),) = rows_of(job, f"SELECT count(*) FILTER ({alike}), count(*) {joined}")
    assert same == count == rows_of(job, "SELECT count(*) FROM copies")[0][0] > 0
    ((inside, exposed),) = rows_of(
        job,
        "SELECT count(*) FILTER (p.start_ns >= o.start_ns AND p.end_ns <= o.end_ns AND p.device = o.device), count(*) "
        "FROM exposed_pieces p JOIN gpu_ops o ON o.id = p.gpu_op",
    )
    assert inside == exposed == rows_of(job, "SELECT count(*) FROM exposed_pieces")[0][0]
    assert rows_of(
        job, "SELECT count(*) FROM gpu_ops o JOIN runtime_calls r ON r.id = o.runtime_call WHERE r.name <> o.call"
    ) == [(0,)]
    assert rows_of(
        job,
        "SELECT device, max(gap) + 1 - count(DISTINCT gap), sum(duration_ns) FROM idle_pieces "
        "GROUP BY device ORDER BY device",
    ) == [(device.device, 0, device.buckets.idle_ns) for device in job.report.devices]


OPS = st.lists(
    st.tuples(st.sampled_from([Kind.COMPUTE, Kind.H2D, Kind.D2H]), st.integers(0, 10**6), st.integers(0, 10**5)),
    min_size=1,
    max_size=20,
)


@given(OPS, st.integers(-1, 2**62))
def test_aggregates_are_numpys(ops: list[tuple[Kind, int, int]], size: int) -> None:
    base = 1_795_232_764_387_142_645
    trace = make_trace(Op(kind, base + at, base + at + length, size=size) for kind, at, length in ops)
    table = trace.gpu_ops
    length = table.end_ns - table.start_ns
    answers = rows_of(
        QueriedTraces((trace,)),
        "SELECT kind, count(*), sum(duration_ns), sum(bytes), min(start_ns), max(duration_ns) "
        "FROM gpu_ops GROUP BY GROUPING SETS ((), (kind))",
    )
    sets: dict[str | None, Any] = {None: np.full(len(table), True)}
    sets |= {Kind(kind).name.lower(): table.kind == kind for kind in np.unique(table.kind).tolist()}
    # Exact also where the sum is more than 64 bits hold.
    assert {row[0]: row[1:] for row in answers} == {
        kind: (
            np.count_nonzero(of),
            length[of].sum(),
            None if size < 0 else size * int(np.count_nonzero(of)),
            table.start_ns[of].min(),
            length[of].max(),
        )
        for kind, of in sets.items()
    }


def test_several_traces_are_distinguished() -> None:
    job = QueriedTraces(tuple(trace_of(TRACES / "ddp" / f"rank{rank}.json.gz") for rank in range(2)))
    assert rows_of(job, "SELECT rank, exposed_comm_ns FROM devices ORDER BY rank") == [
        (trace.rank, trace.devices[0].buckets.exposed_comm_ns) for trace in job.report.traces
    ]
    assert len(rows_of(job, "SELECT * FROM findings")) == len(job.report.findings)


def test_of_which_program_figures_are_and_which_trace_is_in_doubt_is_always_said(
    job: QueriedTraces, tmp_path: Path
) -> None:
    statement = "SELECT 1 FROM steps, plain_steps, findings"
    assert {*ask(job, statement).notes()} >= {
        "The figures in steps and findings are those of the recording.",
        "The figures in plain_steps are those of a step without the profiler.",
    }
    timed = QueriedTraces((load(with_plain_steps(PIPELINE, tmp_path / "timed.json.gz", 40 * MS)),))
    assert "The figures in findings are those of the program without the profiler." in ask(timed, statement).notes()
    doubted = ask(QueriedTraces((trace_of(TRACES / "known_causes" / "host_sync.json.gz"),)), "SELECT 1").notes()
    assert len(doubted) == 1 and "is degraded: the table `checks`" in doubted[0]


# -- what may be asked ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("COPY gpu_ops TO 'x.csv'", "only one SELECT statement"),
        ("ATTACH 'x.db'", "only one SELECT statement"),
        ("INSTALL httpfs", "only one SELECT statement"),
        ("LOAD httpfs", "only one SELECT statement"),
        ("PRAGMA database_list", "only one SELECT statement"),
        ("SET threads = 64", "only one SELECT statement"),
        ("RESET threads", "only one SELECT statement"),
        ("CREATE TABLE x AS SELECT 1", "only one SELECT statement"),
        ("INSERT INTO gpu_ops VALUES (1)", "only one SELECT statement"),
        ("DROP VIEW gpu_ops", "only one SELECT statement"),
        ("CALL enable_logging()", "only one SELECT statement"),
        ("EXPORT DATABASE 'x'", "only one SELECT statement"),
        ("CREATE SECRET (TYPE s3)", "only one SELECT statement"),
        ("EXPLAIN ANALYZE SELECT 1", "only one SELECT statement"),
        ("SELECT 1; SELECT 2", "only one SELECT statement"),
        ("", "only one SELECT statement"),
        ("SELECT * FROM read_csv('/etc/passwd')", "'read_csv' cannot be used as a table"),
        ("WITH x AS (FROM read_text('/etc/passwd')) FROM x", "'read_text' cannot be used as a table"),
        ("SELECT (SELECT max(file) FROM glob('/*'))", "'glob' cannot be used as a table"),
        ("FROM read_parquet('http://localhost/x')", "'read_parquet' cannot be used as a table"),
        ("FROM query('SELECT 1')", "'query' cannot be used as a table"),
        ("FROM duckdb_settings()", "'duckdb_settings' cannot be used as a table"),
        ("FROM enable_logging('QueryLog', storage := 'file')", "'enable_logging' cannot be used as a table"),
        ("FROM '/etc/passwd'", "there is no table '/etc/passwd'"),
        ("FROM information_schema.tables", "there is no table 'information_schema.tables'"),
        ('WITH "pg_catalog.pg_settings" AS (SELECT 1) FROM pg_catalog.pg_settings', "the SQL reads DUCKDB_SETTINGS"),
        ("SELECT (WITH pg_settings AS (SELECT 1 x) SELECT x FROM pg_settings), * FROM pg_settings", "reads DUCKDB_SET"),
        (
            "SUMMARIZE (WITH c AS (WITH pg_tables AS (FROM steps) FROM pg_tables) FROM c, pg_tables)",
            "reads DUCKDB_TABLES",
        ),
        ("WITH secret_directory AS (SELECT 1) SELECT * FROM (SHOW secret_directory)", "no table 'secret_directory'"),
        ("SELECT main.Current_Setting('secret_directory')", "'current_setting' cannot be used"),
        ("SELECT 'secret_directory'.current_setting()", "'current_setting' cannot be used"),
        ("FROM gpu_op", "there is no table 'gpu_op' (did you mean 'gpu_ops'?)"),
        (f"FROM {'x' * 9000}", "there is no table 'xxxx"),
        ("SHOW TABLES", "tables: traces, checks"),
        ("SELEC 1", "the SQL cannot be read: syntax error"),
        ("SELECT nothing FROM steps", 'column "nothing" not found'),
        ("SELECT $1", "the query failed"),
        ("SELECT error('no')", "the query failed: Invalid Input Error: no."),
        ("SELECT '\ud800'", "not valid text"),
        (f"SELECT {'(' * 5000}1{')' * 5000}", "the SQL cannot be read"),
        (f"SELECT {'1,' * 60_000}1", "more than 100,000 characters"),
    ],
)
def test_what_is_not_a_question_to_the_tables_is_refused_in_a_sentence(
    job: QueriedTraces, statement: str, message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        ask(job, statement)
    assert message in str(refused.value)
    assert str(refused.value).endswith(".") and "\n" not in str(refused.value) and len(str(refused.value)) < 700


def test_nothing_that_the_settings_forbid_works_though_it_were_not_refused(
    job: QueriedTraces, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """DuckDB itself also refuses files, network and changes of settings, if a statement passes our check."""
    monkeypatch.setattr(engine, "_tables_of", lambda connection, statement: ("gpu_ops",))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").write_text("a\n1\n")
    for statement in (
        "FROM read_csv('there.csv')",
        "FROM 'there.csv'",
        "FROM glob('*')",
        "COPY gpu_ops TO 'x.csv'",
        "ATTACH 'x.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "CREATE TABLE x AS SELECT 1",
        "WITH x AS (INSERT INTO gpu_ops VALUES (1) RETURNING *) FROM x",
        "FROM job",
        "FROM pg_settings",
        "FROM duckdb_settings()",
        "SHOW TABLES",
    ):
        with pytest.raises(UsageError):
            ask(job, statement)
    assert [path.name for path in tmp_path.iterdir()] == ["there.csv"]


_BOUND = (
    "WITH steps AS MATERIALIZED (SELECT 1 AS a) SELECT again.a FROM steps, steps AS again",
    "SELECT * FROM gpu_ops AS a WHERE EXISTS (SELECT 1 FROM gpu_ops AS b WHERE b.start_ns = a.start_ns)",
    "SELECT unnested FROM range(3), generate_series(2), unnest([1, 2]) AS u(unnested), (VALUES (1), (2)) AS v",
    "SELECT j.value FROM steps, json_each('[1]') AS j UNION ALL SELECT value FROM json_tree('[1]')",
    "WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM t WHERE a < 4) FROM t",
    "SELECT kind, count(*), (SELECT count(*) FROM steps) FROM gpu_ops GROUP BY ROLLUP (kind)",
    "SELECT DISTINCT kind, row_number() OVER (ORDER BY gpu_ops.start_ns) FROM gpu_ops POSITIONAL JOIN steps",
    "SELECT * FROM gpu_ops TABLESAMPLE 50 ROWS",
)
"""Statements whose plans have all kinds of leaves that are allowed."""


@pytest.mark.parametrize(
    "statement", ["DESCRIBE steps", "SUMMARIZE steps", "FROM steps", "SHOW steps", "VALUES (1)", "; SELECT 1;", *_BOUND]
)
def test_other_ways_to_select_are_taken(job: QueriedTraces, statement: str) -> None:
    assert ask(job, statement).row_count > 0


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM range(1000000000) a, range(1000000000) b",
        "SELECT * FROM range(1000000000000)",
        "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n FROM x) SELECT count(*) FROM x",
    ],
)
def test_a_query_that_does_not_end_is_stopped(job: QueriedTraces, statement: str) -> None:
    with pytest.raises(UsageError, match=r"was stopped after 0\.2 s; ask for less"):
        ask(job, statement, most_rows=10, timeout_s=0.2)


def test_a_query_has_so_much_memory_and_a_result_so_many_bytes(
    job: QueriedTraces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine._SETTINGS, "memory_limit", "50MB")
    with pytest.raises(UsageError, match="needs more than"):
        ask(job, "SELECT list(range) FROM range(100000000)")
    monkeypatch.setattr(engine, "RESULT_BYTES", 10**6)
    with pytest.raises(UsageError, match=r"the result is larger than 1 MB"):
        ask(job, "FROM range(10000000)")
    answer = ask(job, "FROM range(1000000)", most_rows=5)
    assert (answer.rows.num_rows, answer.row_count) == (5, 1_000_000)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems set no limit")
@pytest.mark.parametrize(
    "value",
    [
        "length(repeat('x', 1000000000))",
        "length(printf('%1000000000d', 1))",
        "len(range(200000000))",
        "length(replace(repeat('x', 100000), 'x', repeat('y', 10000)))",
        "'x' || repeat('y', 1000000) FROM range(1000)",
    ],
)
def test_a_value_that_a_function_makes_is_stopped_at_the_limit_of_memory(
    job: QueriedTraces, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MEMORY_BYTES", 100_000_000)
    ask(job, "SELECT 1")
    before, limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(UsageError, match="the query needs more than 100 MB of memory; ask for less"):
        ask(job, f"SELECT {value}")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert ask(job, "SELECT 7").rows.to_pydict() == {"7": [7]}
    assert resource.getrlimit(resource.RLIMIT_DATA) == limit


def test_without_duckdb_it_says_how_to_install_it(
    job: QueriedTraces, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "missing", lambda extra: ["duckdb"])
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingPackage):
        tools._run_query(job, "SELECT 1", lambda answer, rows: "")
    assert main(["query", str(PIPELINE), "SELECT 1"]) == 2
    assert extras.install_line("sql") in capsys.readouterr().err


# -- how it is written ------------------------------------------------------------------------------


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(["query", str(PIPELINE), *arguments]) == 0
    return capsys.readouterr().out


def test_text_shows_a_hundred_rows_and_says_how_many_more(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output_of(capsys, "SELECT range AS number FROM range(250)")
    assert "And 150 rows more; --limit shows more of them." in shown and "\n    99\n" in shown
    assert "And 248 rows more" in output_of(capsys, "SELECT * FROM range(250)", "--limit", "2")
    assert "The result has no rows." in output_of(capsys, "SELECT * FROM range(0)")
    assert "row 1" in output_of(capsys, "SELECT * FROM gpu_ops")


def test_json_fits_the_schema_and_says_unit_figures_and_trust(capsys: pytest.CaptureFixture[str]) -> None:
    written = json.loads(
        output_of(capsys, "SELECT id, duration_ns, bytes AS size, name FROM gpu_ops", "--format", "json")
    )
    validate(written, schema_of("query"))
    assert written["kind"] == "query"
    assert written["row_count"] == len(written["rows"]) == len(trace_of(PIPELINE).gpu_ops)
    assert [(column["name"], column["unit"]) for column in written["columns"]] == [
        ("id", None),
        ("duration_ns", "ns"),
        ("size", None),
        ("name", None),
    ]
    assert written["tables"] == [{"name": "gpu_ops", "figures": "of the recording"}]
    assert written["traces"][0]["verdict"] == report_of(PIPELINE).traces[0].trust.verdict
    odd = "SELECT 'NaN'::DOUBLE, 1e30, 1::HUGEINT << 100, 1.50, [1, 2], {'a': DATE '2026-01-01'}, true"
    assert json.loads(output_of(capsys, odd, "--format", "json"))["rows"] == [
        [None, 1e30, 1 << 100, 1.5, [1, 2], {"a": "2026-01-01"}, True]
    ]


def test_csv_and_parquet_hold_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pandas as pd

    statement = "SELECT id, start_ns, bytes, name FROM gpu_ops"
    rows = list(csv.DictReader(io.StringIO(output_of(capsys, statement, "--format", "csv"))))
    ops = trace_of(PIPELINE).gpu_ops
    assert [int(row["start_ns"]) for row in rows] == ops.start_ns.tolist()
    assert [int(row["bytes"] or -1) for row in rows] == ops.bytes.tolist()
    out = tmp_path / "ops.parquet"
    output_of(capsys, statement, "--format", "parquet", "-o", str(out))
    frame = pd.read_parquet(out)
    assert frame["start_ns"].tolist() == ops.start_ns.tolist()
    assert main(["query", str(PIPELINE), statement, "--format", "parquet"]) == 2
    assert "name a file for it with -o FILE" in capsys.readouterr().err


def test_a_statement_comes_from_a_file_or_from_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "steps.sql"
    file.write_text("SELECT count(*) AS n\nFROM steps -- of all devices\n")
    expected = output_of(capsys, "SELECT count(*) AS n FROM steps")
    assert output_of(capsys, "--file", str(file)) == expected
    monkeypatch.setattr("sys.stdin", io.StringIO(file.read_text()))
    assert output_of(capsys, "--file", "-") == expected
    for wrong in ([], [str(PIPELINE)], ["--file", str(file)], [str(PIPELINE), "--file", str(tmp_path / "no.sql")]):
        assert main(["query", *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_schema_lists_every_table_and_column(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "markdown"):
        assert main(["query", "--schema", "--format", form]) == 0
        shown = capsys.readouterr().out.replace("\\", "")
        assert all(
            table.name in shown and all(column.name in shown for column in table.columns) for table in TABLES.values()
        )
    assert main(["query", "--schema", "--format", "json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert [table["name"] for table in written["tables"]] == [*TABLES]
    units = {column["name"]: column["unit"] for table in written["tables"] for column in table["columns"]}
    assert (units["start_ns"], units["efficiency_pct"], units["gb_per_s"], units["name"]) == ("ns", "%", "GB/s", None)
    assert main(["query", "--schema", "--format", "csv"]) == 2


def test_the_skill_file_has_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skill"]) == 0
    text = capsys.readouterr().out
    assert all(f"- `{table.name}`: {table.rows}\n" in text for table in TABLES.values())


def test_a_data_frame_keeps_whole_numbers_whole() -> None:
    trace = trace_of(PIPELINE)
    frame = ov.sql(trace, "SELECT bytes, sum(duration_ns) AS total_ns FROM gpu_ops GROUP BY bytes")
    assert {str(kind) for kind in frame.dtypes} == {"Int64"} and frame["bytes"].isna().any()
    assert int(frame["total_ns"].sum()) == int((trace.gpu_ops.end_ns - trace.gpu_ops.start_ns).sum())
    assert "The figures in gpu_ops are those of the recording." in frame.attrs["notes"]
    assert ov.sql([trace, str(TRACES / "gpt2_train.json.gz")], "SELECT source FROM traces").shape == (2, 1)


def test_hostile_names_are_text_wherever_they_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [HOSTILE, "=1+1|' /C calc'!A0", "\ud800half", "'; DROP TABLE gpu_ops; --", ""]
    place = {"device": 0, "stream": 7}
    kernels = [event("kernel", name, 1000 + 20 * at, 10, **place) for at, name in enumerate(names)]
    path = write_trace(tmp_path / "x\x1b[31m.json", kernels)
    for form in ("text", "markdown", "csv", "json"):
        assert main(["query", path, "SELECT name, source FROM gpu_ops", "--format", form]) == 0
        shown = capsys.readouterr().out
        assert shown.replace("\n", "").isprintable() or form == "json"
        assert "\x1b" not in shown and (form != "csv" or "\n'=1+1" in shown)
    frame = ov.sql(path, "SELECT name FROM gpu_ops ORDER BY start_ns")
    assert frame["name"].tolist()[:2] == names[:2] and len(frame) == len(names)


def test_an_answer_is_not_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answer.json"
    path.write_text(output_of(capsys, "FROM steps", "--format", "json"))
    assert main(["check", str(path)]) == 2
    assert "is the answer to a query" in capsys.readouterr().err
