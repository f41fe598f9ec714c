"""Tables of `overlapscope query`: the meaning of rows and columns.

`rows.py` fills the tables. The end of a column's name states its unit. NULL means unknown or none.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from overlapscope.catalog.measures import Group, of_group
from overlapscope.plugin import Skill

Type = Literal["integer", "number", "text", "boolean"]
Figures = Literal["recorded", "plain", "spoken"]

PROGRAM_WORDS: Final[dict[Figures, str]] = {
    "recorded": "of the recording",
    "plain": "of a step without the profiler",
    "spoken": "of the program without the profiler where its step is known, else of the recording",
}
"""Programs that figures can describe, in words."""
_UNITS: Final = {"_ns": "ns", "_pct": "%", "bytes": "bytes", "gb_per_s": "GB/s"}


def unit_of(column: str) -> str | None:
    """Return the unit that the end of a column's name states."""
    return next((unit for end, unit in _UNITS.items() if column.endswith(end)), None)


class SqlColumn(msgspec.Struct, frozen=True):
    """A column of a table."""

    name: str
    type: Type
    meaning: str
    field: str = ""
    """Name of the result's field, if it differs."""


class SqlTable(msgspec.Struct, frozen=True):
    """A table for queries."""

    name: str
    rows: str
    """Meaning of a row."""
    columns: tuple[SqlColumn, ...]
    figures: Figures = "recorded"
    joined: bool = False
    """True if its rows are of all traces together, compared as the ranks of a job."""


def _integers(**meanings: str) -> tuple[SqlColumn, ...]:
    return tuple(SqlColumn(name, "integer", meaning) for name, meaning in meanings.items())


def _texts(**meanings: str) -> tuple[SqlColumn, ...]:
    return tuple(SqlColumn(name, "text", meaning) for name, meaning in meanings.items())


_TRACE: Final = (
    *_texts(source="the trace's file"),
    *_integers(rank="rank of the trace; NULL if it does not state it"),
)
_DEVICE: Final = _integers(device="ordinal of the GPU")
_STREAM: Final = _integers(device="ordinal of the GPU", stream="the stream")
_TIMES: Final = _integers(
    start_ns="when it began; since 1970 if the trace states its base time",
    end_ns="when it ended",
    duration_ns="end_ns - start_ns",
)
_ID: Final = _integers(id="number of the row within its trace, from 0")
_GPU_OP: Final = _integers(gpu_op="id in gpu_ops")
_CALL: Final = _texts(op="the innermost CPU op around the call", call="the call of the CUDA runtime or driver")
_LINE: Final = SqlColumn("line", "text", "the Python line; NULL unless recorded with stacks")
_SITE: Final = (*_CALL, _LINE)
_CAUSE: Final = _texts(
    cause="the cause: `overlapscope explain CAUSE`",
    confidence="exact; or rebuilt, if it depends on an event edge that the trace does not state",
)
_CAUSES: Final = _texts(
    subject="exposed-copy, exposed-comm, exposed-other or idle", cause="the cause: `overlapscope explain CAUSE`"
)
_MEMORY: Final = (
    *_integers(bytes="bytes moved; NULL if none were, or if they were not recorded"),
    *_texts(
        source_kind="memory copied from: pageable, pinned, device, managed, array; NULL if unknown",
        target_kind="memory copied to, with the same values",
    ),
)
_BETWEEN: Final = _integers(
    source_device="device that a peer copy reads; NULL if not recorded",
    target_device="device that it writes, likewise",
)


def _measures(group: Group, prefix: str = "") -> tuple[SqlColumn, ...]:
    return tuple(
        SqlColumn(measure.id, "integer" if measure.unit == "ns" else "number", f"{prefix}{measure.meaning}")
        for measure in of_group(group)
    )


_BUCKETS: Final = _measures("buckets", "bucket: ")
_ENGINES: Final = _measures("engines")
_OVERLAP: Final = _measures("overlap")
_PERIOD: Final = (
    *_DEVICE,
    *_texts(name="its name"),
    *_integers(start_ns="when it began on the device", end_ns="when it ended", span_ns="its length"),
    *_BUCKETS,
    *_ENGINES,
    *_OVERLAP,
    SqlColumn("partial", "boolean", "whether a part of it is missing: it began in the lead-in, or the recording ended"),
)
_HOST: Final = (
    *_ID,
    *_integers(thread="the system's id of the thread; NULL if unknown"),
    *_texts(name="its name"),
    *_TIMES,
)
_COMM_TIMES: Final = _integers(
    busy_ns="time in which at least one of its kernels ran, summed over the ranks",
    hidden_ns="part of it beside compute",
    exposed_ns="part of it without compute",
    waiting_ns="part of it before the last rank arrived, or the other side of a message began",
    transfer_ns="part of it after that",
    unjudged_ns="part of it for which that is unknown",
    exposed_waiting_ns="part of waiting_ns without compute",
    exposed_transfer_ns="part of transfer_ns without compute",
    exposed_unjudged_ns="part of unjudged_ns without compute",
)
_GROUP: Final = _texts(
    collective="the collective, such as allreduce",
    process_group="name of the process group; empty if not recorded",
    description="its description, such as mesh_dp; empty if not recorded",
    group_ranks="its ranks, as recorded",
)
_CORRELATION: Final = _integers(correlation="joins calls and GPU ops; not unique, as a graph's ops share one")


def _table(name: str, rows: str, *columns: tuple[SqlColumn, ...], figures: Figures = "recorded") -> SqlTable:
    return SqlTable(name, rows, (*_TRACE, *(column for group in columns for column in group)), figures)


def _job_table(name: str, rows: str, *columns: tuple[SqlColumn, ...]) -> SqlTable:
    return SqlTable(name, rows, tuple(column for group in columns for column in group), joined=True)


_ALL: Final = (
    _table(
        "traces",
        "a trace",
        _texts(
            verdict="trusted, degraded or unusable",
            recorder="what recorded it: kineto (torch.profiler), nsys, jax",
            torch="version of PyTorch",
            cuda="version of CUDA",
        ),
        _integers(world_size="number of ranks"),
    ),
    _table(
        "checks",
        "a trust check of a trace",
        _texts(
            id="the check: `overlapscope explain CHECK`",
            status="ok, warn or fail",
            detail="what was found, in a sentence",
        ),
    ),
    _table(
        "per_step",
        "a GPU, in an average step, as reports state it: the mean of the judged steps; no row if no step is whole",
        _DEVICE,
        _texts(
            program="plain, if the figures are of the program without the profiler; recorded, if of the recording",
            origin="how the length of a plain step is known: measured or told; NULL if it is not",
        ),
        _integers(steps="number of judged steps", span_ns="length of the step; the five buckets add up to it"),
        _BUCKETS,
        _ENGINES,
        _OVERLAP,
        figures="spoken",
    ),
    _table(
        "causes_per_step",
        "a cause of exposed copy, exposed communication or idle time in an average step; 0 if it explains nothing",
        _DEVICE,
        _CAUSES,
        _integers(time_ns="the time of a step due to it; the times of a subject add up to its bucket"),
        figures="spoken",
    ),
    _table(
        "devices",
        "a GPU over its whole window as recorded; the five buckets add up to span_ns",
        _DEVICE,
        _texts(name="product name"),
        _integers(
            start_ns="when the first GPU op began",
            end_ns="when the last GPU op ended",
            span_ns="length of the window",
            lead_in_ns="length of the lead-in; NULL if launches were not recorded",
            main_stream="the stream with the most compute",
        ),
        _BUCKETS,
        _ENGINES,
        _OVERLAP,
    ),
    _table(
        "causes",
        "a cause of exposed copy, exposed communication or idle time over the whole window; 0 if it explains nothing",
        _DEVICE,
        _CAUSES,
        _integers(time_ns="the time due to it; the times of a subject add up to its bucket"),
    ),
    _table(
        "plain_steps",
        "a GPU, in a step while nothing is recorded; no row if that is unknown, no buckets without a replay",
        _DEVICE,
        _integers(
            step_ns="length of a step",
            low_ns="lower end of its interval",
            high_ns="upper end of its interval",
            recorded_step_ns="length of an average step in the recording",
        ),
        _texts(origin="how it is known: measured or told"),
        _BUCKETS,
        figures="plain",
    ),
    _table(
        "plain_causes",
        "a cause in a step while nothing is recorded, as in causes_per_step",
        _DEVICE,
        _CAUSES,
        _integers(time_ns="the time of a step due to it"),
        figures="plain",
    ),
    _table(
        "phases",
        "a phase of an inference server, in an average step; no row if none is whole",
        _DEVICE,
        _texts(phase="prefill, decode, mixed, diffusion, empty or unclear"),
        _integers(
            recorded="number of its steps in the recording",
            fewest_requests="minimum number of requests in a judged step; NULL if any step doesn't state them",
            most_requests="maximum number",
            steps="number of judged steps",
            span_ns="length of the step; the five buckets add up to it",
        ),
        (
            SqlColumn(
                "tokens_per_s", "number", "tokens that these steps compute in a second of theirs; NULL if unknown"
            ),
        ),
        _BUCKETS,
        _ENGINES,
        _OVERLAP,
    ),
    _table(
        "phase_causes",
        "a cause in an average step of a server's phase, as in causes_per_step",
        _DEVICE,
        _texts(phase="prefill, decode, mixed, diffusion, empty or unclear"),
        _CAUSES,
        _integers(time_ns="the time of a step due to it; the times of a subject add up to its bucket"),
    ),
    _table(
        "steps",
        "a step on a GPU",
        _PERIOD,
        _texts(phase="phase of an inference server's step; NULL for other programs"),
        _integers(
            requests="number of its requests; NULL if unknown", tokens="tokens that it computes; NULL if unknown"
        ),
    ),
    _table("ranges", "a record_function range on a GPU", _PERIOD),
    _table(
        "findings",
        "a finding: what costs time, and what to change",
        _DEVICE,
        _texts(
            rule="the rule: `overlapscope explain RULE`",
            severity="error, warning or info",
            title="what costs how much",
            detail="the evidence",
            advice="what to change",
            effort="what the advice asks for: option, line or restructuring",
        ),
        _integers(
            steps="number of steps that the following times cover together; 0 if there are no steps",
            cost_ns="the time that it explains; 0 for good news",
            saved_ns="what the fix saves by itself, by replay; NULL if unknown",
            saved_low_ns="lower end of saved_ns; negative if the fix may make the program slower",
            saved_high_ns="upper end of saved_ns",
        ),
        _SITE,
        (
            SqlColumn("example_start_ns", "integer", "the longest single case in the recording", field="start_ns"),
            SqlColumn("example_end_ns", "integer", "its end", field="end_ns"),
        ),
        figures="spoken",
    ),
    _table(
        "stalls",
        "a blocking call of a line of code: how often the host waited in it, and what that cost",
        _DEVICE,
        _integers(
            thread="the system's id of the thread",
            count="how often",
            host_wait_ns="the time that the host spent in it",
            idle_caused_ns="the idle time of the GPU that followed: its cost",
        ),
        _CALL,
        (msgspec.structs.replace(_LINE, field="where"),),
    ),
    _table(
        "gpu_ops",
        "a kernel, copy or memset",
        _ID,
        _STREAM,
        _texts(name="its name", kind="compute, comm, h2d, d2h, p2p, other"),
        _TIMES,
        _MEMORY,
        _BETWEEN,
        _CORRELATION,
        _integers(runtime_call="id in runtime_calls of the launch; NULL if it was not recorded"),
        _SITE,
    ),
    _table(
        "copies",
        "a copy between host and device that takes time",
        _GPU_OP,
        _STREAM,
        _texts(direction="h2d or d2h"),
        _TIMES,
        _MEMORY,
        (SqlColumn("gb_per_s", "number", "1e9 bytes per second over its duration"),),
        _integers(exposed_ns="its time without a running kernel; counted for one of several copies at once"),
        _texts(cause="cause of most of that; NULL if nothing is exposed"),
        _SITE,
    ),
    _table(
        "peer_copies",
        "a copy between two GPUs",
        _GPU_OP,
        _STREAM,
        _BETWEEN,
        _TIMES,
        _integers(bytes="bytes moved; NULL if not recorded"),
        (SqlColumn("gb_per_s", "number", "1e9 bytes per second over its duration"),),
        _integers(exposed_ns="its time without a running kernel"),
        _SITE,
    ),
    _table(
        "exposed_pieces",
        "a piece of exposed copy time with one cause; they add up to exposed_copy_ns",
        _DEVICE,
        _TIMES,
        _CAUSE,
        _GPU_OP,
        _SITE,
    ),
    _table(
        "comm_kernels",
        "a communication kernel: why it was exposed, what let it begin, its prefetch depth",
        _GPU_OP,
        _STREAM,
        _texts(collective="collective and process group; the kernel's name if they are not recorded"),
        _TIMES,
        _integers(exposed_ns="its time without compute; counted for one of several at once"),
        _texts(
            cause="cause of most of that; NULL if nothing is exposed",
            began_by="what let it begin: launch, collective (the one before it on its stream), op, unknown",
            waited_for="the op that it waited for before it began; NULL if it waited for none",
        ),
        _integers(
            lead_ns="time from its end to the first compute that waits for it; NULL if none does",
            prefetch_depth="of an all-gather, the layers of compute between its launch and its use; NULL if unknown",
        ),
        _SITE,
    ),
    _table(
        "exposed_comm_pieces",
        "a piece of exposed communication with one cause; they add up to exposed_comm_ns",
        _DEVICE,
        _TIMES,
        _CAUSE,
        _GPU_OP,
        _SITE,
    ),
    _table(
        "idle_pieces",
        "a piece of idle time with one cause; they add up to idle_ns, those of a gap to an idle gap",
        _DEVICE,
        _integers(gap="number of its idle gap, from 0"),
        _TIMES,
        _CAUSE,
        _integers(thread="the system's id of the thread that decided; NULL if unknown"),
        _SITE,
    ),
    _table(
        "collectives",
        "a communication kernel that names its collective",
        _STREAM,
        _texts(name="the collective, such as allreduce"),
        _TIMES,
        _CORRELATION,
        _texts(
            process_group="name of the process group",
            description="its description, such as mesh_dp",
            group_ranks="its ranks, as recorded",
            dtype="type of an element",
            parts_in="rows sent to each rank, where they may differ",
            parts_out="rows received from each rank",
        ),
        _integers(
            group_size="number of its ranks",
            elements_in="elements sent",
            elements_out="elements received",
            bytes="size of the larger of these",
            sequence="number of the collective within its group",
        ),
    ),
    _job_table(
        "group_collectives",
        "a collective of a process group, in judged steps",
        _GROUP,
        _integers(
            dimension="id in mesh_dimensions",
            group_size="number of ranks of the group",
            ranks="number of ranks that ran it",
            count="number of kernels of all ranks",
            bytes="size of their messages; NULL if unknown",
        ),
        _COMM_TIMES,
        _integers(
            transferred_bytes="messages of the collectives whose speed is known, counted once for the group",
            transferred_ns="time from the last arrival to the end in these",
        ),
        (SqlColumn("bus_gb_per_s", "number", "bus bandwidth of these, by the factor of nccl-tests"),),
    ),
    _job_table(
        "mesh_dimensions",
        "process groups along a dimension of the mesh",
        _integers(dimension="number of the row, from 0"),
        _texts(
            name="their description; without one, their collectives",
            spans="places in mesh that a group spans, such as [0]; [] if unknown or none",
            mesh="sizes of the mesh's dimensions, such as [2, 4]; [] if unknown",
        ),
        _integers(
            groups="number of groups",
            group_size="number of ranks of a group",
            ranks="number of ranks that communicate in them",
        ),
        _COMM_TIMES,
    ),
    _job_table(
        "slow_groups",
        "a collective slower in one group than in its peers",
        _GROUP,
        _integers(
            dimension="id in mesh_dimensions",
            bytes="size of each rank's message",
            count="number of collectives",
            peers="number of other groups",
            lost_ns="time that they took longer than at the speed of the others",
        ),
        (
            SqlColumn("bus_gb_per_s", "number", "bus bandwidth of the median one"),
            SqlColumn("peers_gb_per_s", "number", "the same of the other groups"),
        ),
    ),
    _table("runtime_calls", "a call into the CUDA runtime or driver", _HOST, _CORRELATION),
    _table("cpu_ops", "an op of PyTorch on the host", _HOST),
    _table("annotations", "a record_function range or step on the host", _HOST),
)

TABLES: Final = {table.name: table for table in _ALL}
"""Tables by name."""

_SKILL: Final = """\
## SQL

`query` is for everything else: one SELECT in DuckDB's dialect; no files, no network. Aggregate in SQL and use LIMIT.
`source` and `rank` tell traces apart. A row of each table:
"""


def skill() -> Skill:
    """Return the section on SQL in the skill file."""
    return Skill(
        (
            ("Anything that these figures do not say", 'overlapscope query TRACE "SELECT ..." --format json'),
            ("Which tables and columns are there?", "overlapscope query --schema --format markdown"),
        ),
        "\n".join((_SKILL, *(f"- `{table.name}`: {table.rows}" for table in _ALL))),
    )
