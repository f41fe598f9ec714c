"""Traces built by hand, for tests that state their own truth."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from overlapscope.base.marks import HOST_ACTIVITY, METADATA, PLAIN_STEPS
from overlapscope.trace.host_activity import HostActivity
from overlapscope.trace.model import (
    Collectives,
    DeviceAnnotations,
    GpuOps,
    HostEvents,
    Kind,
    Memory,
    RuntimeCalls,
    Sync,
    Syncs,
    Trace,
)

_T = TypeVar("_T")
_U = TypeVar("_U")
TRACES = Path(__file__).parents[2] / "traces"
MS = 1_000_000
US = 1_000


def recordings() -> list[Path]:
    """Return the bundled recordings, without the pairs that only serve to evaluate predictions."""
    return sorted(path for path in TRACES.rglob("*.json.gz") if not {"further", "second"} & {*path.parts})


TELLING = (
    "further/batches/pinned_blocking",
    "known_causes/allocation",
    "known_causes/backward_on_side_stream",
    "known_causes/data_loading_stacks",
    "known_causes/engine_busy",
    "known_causes/host_sync",
    "known_causes/launch_bound_graph",
    "known_causes/many_small_copies",
    "known_causes/one_copy_stream",
    "known_causes/pin_in_loop",
    "known_causes/two_streams_full_kernels",
    "laboratory/d2h_hazard/synchronize.trace",
    "laboratory/ddp_training/no_overlap.traces/rank1.trace",
    "laboratory/offload_pipeline/one_stream.trace",
    "laboratory/pin_threads/pin_4_threads.trace",
    "laboratory/serving/slow_scheduler.trace",
    "mixed_workloads/kv_offload_no_sync_events",
    "mixed_workloads/model_on_two_devices",
    "mixed_workloads/small_transformer_gpu_only",
    "recorder/torch_profiler.trace",
    "streamed1_pinned1",
)
"""Recordings that together show every cause, rule and answer of a check that any shows, as a test makes sure."""


def thorough() -> bool:
    """Return whether this run tries every recording, as `make check` does."""
    # The fuzzer, which needs the other helpers, runs without it.
    from hypothesis import settings

    return settings.get_current_profile_name() == "thorough"


def tried(paths: Iterable[Path]) -> list[Path]:
    """Return the bundled recordings that this run reads: those of `TELLING`, or all in a thorough run."""
    if thorough():
        return [*paths]
    telling = {TRACES / f"{name}.json.gz" for name in TELLING}
    return [path for path in paths if path.absolute() in telling]


def various() -> list[Path]:
    """Return the bundled recordings, but only the last of each experiment of the laboratory:

    For the others, replays included, `tests/plugins/laboratory/evaluation` holds to the last digit.
    """
    last = {path.relative_to(TRACES).parts[:2] if "laboratory" in path.parts else path: path for path in recordings()}
    return tried(sorted(last.values()))


def in_turn(of: Iterable[_T], among: Iterable[_U]) -> list[tuple[_T, _U]]:
    """Return each value of the first with one of the second, which take turns: the whole table would take too long."""
    return list(zip(of, itertools.cycle(among), strict=False))


def with_plain_steps(recording: Path, target: Path, step_ns: int) -> Path:
    """Return a copy of a recording around which steps of about that length were timed."""
    document = msgspec.json.decode(gzip.decompress(recording.read_bytes()))
    timed = {"host_ns": [step_ns + number * US for number in range(-5, 6)], "device_ns": []}
    metadata = document.setdefault(METADATA, {})
    metadata[PLAIN_STEPS] = {"before": timed, "after": timed}
    target.write_bytes(gzip.compress(msgspec.json.encode(document), 1))
    return target


class Op(NamedTuple):
    """A GPU op; `launch` is the host interval of its launch call on `thread`, None where not recorded."""

    kind: Kind
    start: int
    end: int
    stream: int = 7
    launch: tuple[int, int] | None = None
    call: str = "cudaLaunchKernel"
    thread: int = 1
    source: Memory = Memory.PINNED
    target: Memory = Memory.DEVICE
    size: int = -1
    device: int = 0
    name: str = "op"
    correlation: int | None = None
    blocks: int = -1


class Host(NamedTuple):
    """A host event; as a runtime call it launches nothing."""

    name: str
    start: int
    end: int
    thread: int = 1


class Wait(NamedTuple):
    """`cudaStreamWaitEvent` at a host time, with its sync record unless `recorded` is false."""

    at: int
    stream: int
    thread: int = 1
    source_stream: int = -1
    record_correlation: int = -1
    recorded: bool = True


def make_trace(
    ops: Iterable[Op] = (),
    *,
    calls: Iterable[Host] = (),
    waits: Iterable[Wait] = (),
    cpu_ops: Iterable[Host] = (),
    annotations: Iterable[Host] = (),
    python_frames: Iterable[Host] = (),
    overheads: Iterable[Host] = (),
    **rest: Any,
) -> Trace:
    """Return a trace of the given events; correlations are given in launch order."""
    ops = list(ops)
    names: dict[str, int] = {}

    def name_id(name: str) -> int:
        return names.setdefault(name, len(names))

    rows: list[tuple[int, int, int, int, tuple[str, int]]] = []
    for number, op in enumerate(ops):
        if op.launch is not None:
            rows.append((*op.launch, name_id(op.call), op.thread, ("op", number)))
    for number, call in enumerate(calls):
        rows.append((call.start, call.end, name_id(call.name), call.thread, ("call", number)))
    waits = list(waits)
    for number, wait in enumerate(waits):
        rows.append((wait.at, wait.at + 1, name_id("cudaStreamWaitEvent"), wait.thread, ("wait", number)))
    rows.sort(key=lambda row: (row[0], -row[1]))
    place = {row[4]: index for index, row in enumerate(rows)}

    def column(values: Iterable[int], dtype: Any = np.int64) -> Any:
        return np.array(list(values), dtype=dtype)

    def correlation(number: int, op: Op) -> int:
        if op.correlation is not None:
            return op.correlation
        return 1000 + place["op", number] if ("op", number) in place else -1

    in_order = sorted(range(len(ops)), key=lambda i: (ops[i].start, -ops[i].end))
    mine = [ops[i] for i in in_order]
    ids = [name_id(op.name) for op in mine]
    sync_ids = [name_id("Stream Wait Event")] * len(waits)

    groups = {
        key: sorted(events, key=lambda e: (e.start, -e.end))
        for key, events in (
            ("cpu_ops", cpu_ops),
            ("annotations", annotations),
            ("python_frames", python_frames),
            ("overheads", overheads),
        )
    }
    group_ids = {key: [name_id(e.name) for e in events] for key, events in groups.items()}
    table = tuple(names)
    tables = {
        key: HostEvents(
            table,
            column(e.start for e in events),
            column(e.end for e in events),
            column(group_ids[key], np.int32),
            column(range(len(events)), np.int32),
            column(e.thread for e in events),
        )
        for key, events in groups.items()
    }
    return Trace(
        source=rest.pop("source", "made-up.json"),
        names=table,
        gpu_ops=GpuOps(
            table,
            column(op.start for op in mine),
            column(op.end for op in mine),
            column(ids, np.int32),
            column(range(len(mine)), np.int32),
            column((op.kind for op in mine), np.int8),
            column((op.device for op in mine), np.int32),
            column((op.stream for op in mine), np.int32),
            column(correlation(i, ops[i]) for i in in_order),
            column(place.get(("op", i), -1) for i in in_order),
            column(op.size for op in mine),
            column((op.source for op in mine), np.int8),
            column((op.target for op in mine), np.int8),
            np.full(len(mine), -1.0),
            column(op.blocks for op in mine),
            column(-1 for op in mine),
            column((-1 for op in mine), np.int32),
            column((-1 for op in mine), np.int32),
            column(-1 for op in mine),
        ),
        runtime_calls=RuntimeCalls(
            table,
            column(row[0] for row in rows),
            column(row[1] for row in rows),
            column((row[2] for row in rows), np.int32),
            column(range(len(rows)), np.int32),
            column(row[3] for row in rows),
            column(1000 + index for index in range(len(rows))),
        ),
        syncs=Syncs(
            table,
            column(w.at for w in waits if w.recorded),
            column(w.at + 1 for w in waits if w.recorded),
            column(sync_ids[: sum(w.recorded for w in waits)], np.int32),
            column(range(sum(w.recorded for w in waits)), np.int32),
            column((Sync.STREAM_WAIT_EVENT for w in waits if w.recorded), np.int8),
            column((0 for w in waits if w.recorded), np.int32),
            column((w.stream for w in waits if w.recorded), np.int32),
            column(1000 + place["wait", i] for i, w in enumerate(waits) if w.recorded),
            column(1 for w in waits if w.recorded),
            column((w.source_stream for w in waits if w.recorded), np.int32),
            column((0 if w.source_stream >= 0 else -1 for w in waits if w.recorded), np.int32),
            column(w.record_correlation for w in waits if w.recorded),
        ),
        device_annotations=DeviceAnnotations.empty(names=table),
        collectives=Collectives.empty(names=table),
        device_names=rest.pop("device_names", {}),
        cpu_ops=tables["cpu_ops"],
        annotations=tables["annotations"],
        python_frames=tables["python_frames"],
        overheads=tables["overheads"],
        **rest,
    )


def with_host_activity(recording: Path, target: Path, activity: HostActivity) -> Path:
    """Return a copy of a recording with which the host's activity was sampled."""
    document = msgspec.json.decode(gzip.decompress(recording.read_bytes()))
    document.setdefault(METADATA, {})[HOST_ACTIVITY] = activity
    target.write_bytes(gzip.compress(msgspec.json.encode(document), 1))
    return target
