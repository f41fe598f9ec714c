"""Command lines whose outputs are compared, in groups that may run beside each other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from overlapscope.commands import commands
from overlapscope.commands._options import FORMATS
from overlapscope.commands.check import FORMATS as CHECK_FORMATS
from overlapscope.commands.schema import writers
from overlapscope.dashboard.pages import PAGES
from overlapscope.glossary import entries
from tests.support.helpers import TELLING

PAGE, TOOL = "PAGE", "TOOL"
"""First words of lines that aren't commands: pages of the dashboard, and tools of `overlapscope mcp`."""
_LATE = ("overview", "compare", "whatif")
"""Pages that show what is known when they are asked for; browser tests see all of it."""
SUFFIXES = (".json.gz", ".trace.json", ".sqlite", ".pb")
TOLD = {f"traces/{name}.json.gz" for name in TELLING}
"""Recordings of which every format is compared."""
PAIR = ("traces/streamed0_pinned0.json.gz", "traces/streamed1_pinned1.json.gz")
QUERIED = {f"traces/{name}.json.gz" for name in ("streamed1_pinned1", "mixed_workloads/model_on_two_devices")}
"""Recordings of which every table is compared."""
ANALYSES = ("temporal", "overlap", "kernels", "launches", "queue", "memory", "sequences", "stragglers")
TABLES = (
    *("traces", "checks", "per_step", "causes_per_step", "devices", "causes", "plain_steps", "plain_causes", "steps"),
    *("ranges", "findings", "stalls", "gpu_ops", "copies", "peer_copies", "exposed_pieces", "comm_kernels"),
    *("exposed_comm_pieces", "idle_pieces", "collectives"),
    *("runtime_calls", "cpu_ops", "annotations"),
)
CHANGES = ("--pin", "--side-stream", "--graph", "--prefetch", "--batch-copies", "--no-gc", "--best")


def groups(folder: Path) -> Iterator[list[str]]:
    """Yield groups of command lines. Those of a group run in order, in a folder like this one."""
    found, of_jobs = _recordings(folder, "traces", "nsys"), _recordings(folder, "traces/ddp", "jobs")
    yield list(_tools())
    yield [
        *(f"hta {name} traces/ddp --format json" for name in ANALYSES),
        *_formats("hta temporal traces/ddp", ("text", "csv", "markdown")),
    ]
    for job in sorted({str(Path(recording).parent) for recording in of_jobs if "rank1." in recording}):
        yield list(_of_job(job))
    for previous, recording in itertools.pairwise([found[-1], *found]):
        yield [*_of_recording(recording), *_of_pair(previous, recording)]
    for recording in sorted(TOLD):
        yield [
            f"PAGE {page} {recording}" for page, kind in PAGES.items() if kind.needs != "nothing" and page not in _LATE
        ]
    yield [
        f"PAGE {page} traces/{name}"
        for name in ("ddp", "laboratory")
        for page in PAGES
        if page not in ("history", *_LATE)
    ]
    yield list(_history())
    yield list(_contracts())
    yield ["scenarios list", "scenarios report --results traces/laboratory --output laboratory-report"]
    yield list(_words())


def _recordings(folder: Path, *parts: str) -> list[str]:
    paths = (path for part in parts for path in (folder / part).rglob("*"))
    return sorted(str(path.relative_to(folder)) for path in paths if path.name.endswith(SUFFIXES))


def _formats(line: str, formats: Sequence[str]) -> Iterator[str]:
    for format in formats:
        yield f"{line} --format {format}"


def _of_recording(recording: str) -> Iterator[str]:
    yield from _formats(f"analyze {recording} -v", ("text", "json"))
    if recording not in TOLD:
        return
    yield f"analyze {recording}"
    yield f"analyze {recording} -v --format markdown"
    yield f"contract write {recording} -o contract.toml --force"
    yield f"check {recording} --format json"
    yield f"analyze {recording} --plain-step 20ms -v"
    yield from _formats(f"check {recording} --budget 'step_time <= 1 ms' -v", CHECK_FORMATS)
    for change in CHANGES:
        yield f"whatif {recording} {change} --format json"
    yield from _formats(f"whatif {recording} --best -v", FORMATS)
    yield f"whatif {recording} --pin --timeline predicted.json --force"
    for table in TABLES if recording in QUERIED else ():
        yield f'query {recording} "SELECT * FROM {table}" --format csv'
    if recording in QUERIED:
        yield f"analyze {recording} --format html"
        yield from _formats(f'query {recording} "SELECT * FROM causes"', ("text", "json", "markdown"))


def _of_job(job: str) -> Iterator[str]:
    yield from _formats(f"ranks {job} -v", FORMATS)
    for change in ("--no-straggler", "--issue-earlier", "--bandwidth 2x"):
        yield f"whatif {job} {change} --format json"
    yield f"whatif {job} --best -v"


def _of_pair(before: str, after: str) -> Iterator[str]:
    if after in TOLD:
        yield from _formats(f"diff {before} {after} -v", FORMATS)


def _history() -> Iterator[str]:
    for number, recording in enumerate(PAIR * 3):
        yield f"history add --history h.sqlite --job job --commit {number:040} --branch main {recording}"
    for by in ("commit", "hour", "report"):
        yield from _formats(f"history --history h.sqlite --by {by}", FORMATS)
    yield from _formats("history check --history h.sqlite", FORMATS)
    yield f"check {PAIR[0]} --history h.sqlite --job job"
    yield "PAGE history traces/ddp h.sqlite"
    yield "history prune --history h.sqlite --keep 2"


def _contracts() -> Iterator[str]:
    for number, recording in enumerate(PAIR):
        yield f"contract write {recording} -o {number}.toml"
        yield f"check {PAIR[1]} --contract {number}.toml"
    yield "contract diff 0.toml 1.toml"
    yield f"contract update {PAIR[1]} -o 0.toml"
    yield f"check {PAIR[0]} --write-baseline --baseline baseline.json"
    yield from _formats(f"check {PAIR[1]} --baseline baseline.json --budget 'step_time increase <= 5%'", CHECK_FORMATS)
    yield f"check {PAIR[1]} --budget 'step_time <= 1 ms' --explain step_time"


def _tools() -> Iterator[str]:
    trace = f'"path": "{Path(PAIR[0]).name}"'
    calls = {
        "list_traces": "",
        "open_trace": trace,
        "verdict": trace,
        "findings": trace,
        "explain": '"word": "idle"',
        "tables": "",
        "timeline": f'{trace}, "start_ns": 0, "end_ns": 9000000',
        "query": f'{trace}, "sql": "SELECT * FROM causes"',
        "whatif": f'{trace}, "changes": ["pin"]',
        "diff": f'"before": "{Path(PAIR[0]).name}", "after": "{Path(PAIR[1]).name}"',
        "check": f'{trace}, "budgets": ["efficiency_pct >= 80%"]',
        "ranks": '"path": "ddp"',
    }
    for tool, arguments in calls.items():
        yield f"TOOL {tool} '{{{arguments}}}'"


def _words() -> Iterator[str]:
    yield from ("", "--help", "--help-all", "--version", "no-such-command", "explain", "query --schema", "skill")
    for command in commands():
        yield f"{command} --help-all"
        yield f"{command} --help"
    yield from (f"schema {kind}" for kind in writers())
    yield from (f"completion {shell}" for shell in ("bash", "zsh", "fish"))
    yield "hta --list"
    for word in dict.fromkeys(entry.word for entry in entries()):
        yield f'explain "{word}"'
