"""Causes of exposed copies, communication and other memory work, and of idle gaps, in the order of trying them.

`docs/how-it-works/causes.md` says how each is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from overlapscope.base.texts import GPU, read_texts

Subject = Literal["exposed-copy", "exposed-comm", "exposed-other", "idle"]
"""Kind of time that a cause explains."""


class CopyCause(StrEnum):
    """Cause of a copy that ran while nothing computed."""

    LEAD_IN = "lead-in"
    PAGEABLE_MEMORY = "pageable-memory"
    NO_COMPUTE = "no-compute"
    SAME_STREAM = "same-stream"
    EVENT_WAIT = "event-wait"
    HOST_SYNC = "host-sync"
    ENGINE_BUSY = "engine-busy"
    LATE_ISSUE = "late-issue"
    UNKNOWN = "unknown"


class CommCause(StrEnum):
    """Cause of communication that ran while nothing computed."""

    LEAD_IN = "lead-in"
    SAME_STREAM = "same-stream"
    HOST_SYNC = "host-sync"
    LATE_COMPUTE = "late-compute"
    LAUNCH_LATENCY = "launch-latency"
    LATE_ISSUE = "late-issue"
    BLOCKED_BEHIND = "blocked-behind"
    WAITING_FOR_INPUT = "waiting-for-input"
    STRAGGLER = "straggler"
    MESSAGE_WAIT = "message-wait"
    TRANSFER = "transfer"
    WAITING_OR_TRANSFER = "waiting-or-transfer"
    NO_COMPUTE = "no-compute"
    UNKNOWN = "unknown"


class OtherCause(StrEnum):
    """Memory work that ran while no kernel and no copy between host and device did."""

    PEER_COPY = "peer-copy"
    PAGE_MIGRATION = "page-migration"
    DEVICE_COPY = "device-copy"
    MEMSET = "memset"
    UNKNOWN = "unknown"


class IdleCause(StrEnum):
    """Cause of a gap in which no GPU op ran."""

    HOST_SYNC = "host-sync"
    PYTHON = "python"
    DISPATCH = "dispatch"
    CPU_OPS = "cpu-ops"
    DATA_LOADING = "data-loading"
    HOST_STAGING = "host-staging"
    ALLOCATION = "allocation"
    GC_PAUSE = "gc-pause"
    GIL_WAIT = "gil-wait"
    FILE_IO = "file-io"
    PREEMPTED = "preempted"
    CPU_THROTTLED = "cpu-throttled"
    EVENT_WAIT = "event-wait"
    PROFILER_OVERHEAD = "profiler-overhead"
    LAUNCH_LATENCY = "launch-latency"
    LEAD_IN = "lead-in"
    GRAPH_CAPTURE = "graph-capture"
    GRAPH_GAP = "graph-gap"
    AWAITING_REQUESTS = "awaiting-requests"
    FIRST_LAUNCH = "first-launch"
    NOT_RECORDED = "not-recorded"
    MISSING_OPS = "missing-ops"
    UNRECORDED = "unrecorded"
    UNKNOWN = "unknown"


WORK_UNKNOWN = frozenset({IdleCause.MISSING_OPS, IdleCause.UNRECORDED})
"""Causes of time that is in the idle bucket, although the GPU may have worked."""
COPY_CAUSES = tuple(CopyCause)
JOINED_COMM_CAUSES = (CommCause.STRAGGLER, CommCause.MESSAGE_WAIT, CommCause.TRANSFER)
"""Causes that need the other ranks' traces."""
COMM_CAUSES = tuple(cause for cause in CommCause if cause not in JOINED_COMM_CAUSES)
"""Causes that the trace of a single rank can show."""
IDLE_CAUSES = tuple(IdleCause)
OTHER_CAUSES = tuple(OtherCause)
COPY_RANK = {cause: rank for rank, cause in enumerate(COPY_CAUSES)}
COMM_RANK = {cause: rank for rank, cause in enumerate(COMM_CAUSES)}
OTHER_RANK = {cause: rank for rank, cause in enumerate(OTHER_CAUSES)}
IDLE_RANK = {cause: rank for rank, cause in enumerate(IDLE_CAUSES)}


class CauseWords(Struct, frozen=True, forbid_unknown_fields=True):
    """Texts of a cause, from `causes.toml`."""

    meaning: str
    """Meaning as a single sentence."""
    evidence: str
    """Meaning for a single call or op that shows it, as a clause whose subject is that call or op."""
    remedy: str = ""
    """Remedy in a sentence; empty if there is none."""
    fixing: str = ""
    """Remedy as the subject of a sentence, such as `Pinning the host memory`."""
    elsewhere: tuple[str, str] | None = None
    """`remedy` and `fixing` for traces of other recorders than torch.profiler, if they differ."""

    def helps(self, recorder: str) -> tuple[str, str]:
        """Return `remedy` and `fixing` for a trace of this recorder (`Trace.recorder`)."""
        return (self.remedy, self.fixing) if recorder == "kineto" or self.elsewhere is None else self.elsewhere


class Cause(Struct, frozen=True):
    """A cause, and what follows from it."""

    id: CopyCause | CommCause | OtherCause | IdleCause
    rule: str = ""
    """Rule that gets the cause's time unless another rule claims it; empty if there is none."""
    explained_by: tuple[str, ...] = ()
    """Rules whose findings may explain it, the most likely first."""
    by_host: bool = False
    """True if the speed of the host decides how long it lasts."""
    blames_call: bool = False
    """True if it is due to the call that the host was inside, which is the place to look at."""

    @property
    def words(self) -> CauseWords:
        """Texts, in the words for GPUs."""
        return self.words_for(GPU)

    def words_for(self, gpu: str) -> CauseWords:
        """Return the texts in the words for a device."""
        return _words(gpu)[_SUBJECTS[type(self.id)]][self.id]


_SUBJECTS: Final[Mapping[type, Subject]] = {
    CopyCause: "exposed-copy",
    CommCause: "exposed-comm",
    OtherCause: "exposed-other",
    IdleCause: "idle",
}


@cache
def _words(gpu: str) -> dict[Subject, dict[str, CauseWords]]:
    return read_texts(Path(__file__).with_name("causes.toml"), dict[Subject, dict[str, CauseWords]], gpu)


def _by_id(*causes: Cause) -> dict[str, Cause]:
    return {cause.id: cause for cause in causes}


EXPOSED_COPY: Final = _by_id(
    Cause(CopyCause.LEAD_IN),
    Cause(CopyCause.PAGEABLE_MEMORY, rule="pageable-memory", explained_by=("pageable-memory", "tiny-copies")),
    Cause(CopyCause.NO_COMPUTE, explained_by=("one-way-copies", "tiny-copies", "slow-link")),
    Cause(CopyCause.SAME_STREAM, rule="same-stream", explained_by=("same-stream", "tiny-copies")),
    Cause(CopyCause.EVENT_WAIT, rule="late-prefetch", explained_by=("late-prefetch", "tiny-copies")),
    Cause(
        CopyCause.HOST_SYNC,
        rule="host-sync",
        explained_by=("host-sync", "blocking-copy", "pageable-memory", "tiny-copies"),
        by_host=True,
    ),
    Cause(CopyCause.ENGINE_BUSY, rule="late-prefetch", explained_by=("late-prefetch", "tiny-copies")),
    Cause(CopyCause.LATE_ISSUE, rule="late-prefetch", explained_by=("late-prefetch", "tiny-copies"), by_host=True),
    Cause(CopyCause.UNKNOWN, by_host=True),
)
"""Causes of exposed copies, by id."""

EXPOSED_COMM: Final = _by_id(
    Cause(CommCause.LEAD_IN),
    Cause(CommCause.SAME_STREAM, explained_by=("exposed-comm",)),
    Cause(CommCause.HOST_SYNC, explained_by=("exposed-comm", "host-sync"), by_host=True),
    Cause(CommCause.LATE_COMPUTE, explained_by=("exposed-comm", "dispatch", "python"), by_host=True),
    Cause(CommCause.LAUNCH_LATENCY),
    Cause(CommCause.LATE_ISSUE, explained_by=("exposed-comm",), by_host=True),
    Cause(CommCause.BLOCKED_BEHIND, explained_by=("exposed-comm",)),
    Cause(CommCause.WAITING_FOR_INPUT, explained_by=("exposed-comm",)),
    Cause(CommCause.STRAGGLER),
    Cause(CommCause.MESSAGE_WAIT),
    Cause(CommCause.TRANSFER),
    Cause(CommCause.WAITING_OR_TRANSFER),
    Cause(CommCause.NO_COMPUTE),
    Cause(CommCause.UNKNOWN, by_host=True),
)
"""Causes of exposed communication, by id."""

EXPOSED_OTHER: Final = _by_id(
    Cause(OtherCause.PEER_COPY, rule="peer-copy", explained_by=("peer-copy",)),
    Cause(OtherCause.PAGE_MIGRATION, rule="page-migration", explained_by=("page-migration",)),
    Cause(OtherCause.DEVICE_COPY, rule="device-copy", explained_by=("device-copy",)),
    Cause(OtherCause.MEMSET),
    Cause(OtherCause.UNKNOWN),
)
"""Kinds of exposed memory work in and between GPUs, by id."""

IDLE: Final = _by_id(
    Cause(
        IdleCause.HOST_SYNC,
        rule="host-sync",
        explained_by=("host-sync", "blocking-copy", "pageable-memory"),
        by_host=True,
        blames_call=True,
    ),
    Cause(IdleCause.PYTHON, rule="python", explained_by=("python", "tiny-copies"), by_host=True),
    Cause(IdleCause.DISPATCH, rule="dispatch", explained_by=("dispatch", "tiny-copies"), by_host=True),
    Cause(IdleCause.CPU_OPS, rule="cpu-ops", explained_by=("cpu-ops",), by_host=True),
    Cause(IdleCause.DATA_LOADING, rule="data-loading", explained_by=("data-loading",), by_host=True),
    Cause(
        IdleCause.HOST_STAGING,
        rule="pageable-memory",
        explained_by=("pin-in-loop", "pageable-memory"),
        by_host=True,
        blames_call=True,
    ),
    Cause(IdleCause.ALLOCATION, rule="allocation", explained_by=("allocation",), by_host=True, blames_call=True),
    Cause(IdleCause.GC_PAUSE, rule="gc-pause", explained_by=("gc-pause",), by_host=True),
    Cause(IdleCause.GIL_WAIT, rule="gil-wait", explained_by=("gil-wait",), by_host=True),
    Cause(IdleCause.FILE_IO, rule="file-io", explained_by=("file-io",), by_host=True),
    Cause(IdleCause.PREEMPTED, rule="preempted", explained_by=("preempted",), by_host=True),
    Cause(IdleCause.CPU_THROTTLED, rule="cpu-throttled", explained_by=("cpu-throttled",), by_host=True),
    Cause(IdleCause.EVENT_WAIT),
    Cause(IdleCause.PROFILER_OVERHEAD, by_host=True),
    Cause(IdleCause.LAUNCH_LATENCY, explained_by=("tiny-copies",)),
    Cause(IdleCause.LEAD_IN),
    Cause(IdleCause.GRAPH_CAPTURE, by_host=True),
    Cause(IdleCause.GRAPH_GAP),
    Cause(IdleCause.AWAITING_REQUESTS),
    Cause(IdleCause.FIRST_LAUNCH, by_host=True),
    Cause(IdleCause.NOT_RECORDED, by_host=True),
    Cause(IdleCause.MISSING_OPS),
    Cause(IdleCause.UNRECORDED, by_host=True),  # Perhaps; then it varies most.
    Cause(IdleCause.UNKNOWN, by_host=True),
)
"""Causes of idle time, by id."""

CAUSES: Final[Mapping[Subject, Mapping[str, Cause]]] = {
    "exposed-copy": EXPOSED_COPY,
    "exposed-comm": EXPOSED_COMM,
    "exposed-other": EXPOSED_OTHER,
    "idle": IDLE,
}
"""Causes by the kind of time that they explain, and by id."""
STALL_CAUSES: Final = tuple(cause for cause in IDLE_CAUSES if IDLE[cause].blames_call)
"""Causes of idle time that blame a call: host stalls."""
