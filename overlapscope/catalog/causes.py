"""Causes of exposed copies, communication and other memory work, and of idle gaps, in the order of trying them.

`docs/how-it-works/causes.md` says how each is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, Literal, Self

from msgspec import Struct

from overlapscope.base.words import GPU, read_texts

Subject = Literal["exposed-copy", "exposed-comm", "exposed-other", "idle"]
"""Kind of time that a cause explains."""


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


class _Follows(Struct, frozen=True, kw_only=True):
    """Consequences of a cause."""

    rule: str = ""
    explained_by: tuple[str, ...] = ()
    by_host: bool = False
    blames_call: bool = False


_NOTHING: Final = _Follows()
_BY_HOST: Final = _Follows(by_host=True)


class Cause(StrEnum):
    """A cause, whose value is its id, and what follows from it."""

    rule: str
    """Rule that gets the cause's time unless another rule claims it; empty if there is none."""
    explained_by: tuple[str, ...]
    """Rules whose findings may explain it, the most likely first."""
    by_host: bool
    """True if the speed of the host decides how long it lasts."""
    blames_call: bool
    """True if it is due to the call that the host was inside, which is the place to look at."""

    def __new__(cls, id: str, follows: _Follows = _NOTHING) -> Self:
        """Make a member from its id and what follows from it."""
        member = str.__new__(cls, id)
        member._value_ = id
        for name in _Follows.__struct_fields__:
            setattr(member, name, getattr(follows, name))
        return member

    @property
    def words(self) -> CauseWords:
        """Texts, in the words for GPUs."""
        return self.words_for(GPU)

    def words_for(self, gpu: str) -> CauseWords:
        """Return the texts in the words for a device."""
        subject = next(subject for subject, kind in _KINDS.items() if isinstance(self, kind))
        return _words(f"{subject}.{self}", gpu)


_LATE_PREFETCH: Final = ("late-prefetch", "tiny-copies")


class CopyCause(Cause):
    """Cause of a copy that ran while nothing computed."""

    LEAD_IN = "lead-in"
    PAGEABLE_MEMORY = (
        "pageable-memory",
        _Follows(rule="pageable-memory", explained_by=("pageable-memory", "tiny-copies")),
    )
    NO_COMPUTE = "no-compute", _Follows(explained_by=("one-way-copies", "tiny-copies", "slow-link"))
    SAME_STREAM = "same-stream", _Follows(rule="same-stream", explained_by=("same-stream", "tiny-copies"))
    EVENT_WAIT = "event-wait", _Follows(rule="late-prefetch", explained_by=_LATE_PREFETCH)
    HOST_SYNC = (
        "host-sync",
        _Follows(
            rule="host-sync",
            explained_by=("host-sync", "blocking-copy", "pageable-memory", "tiny-copies"),
            by_host=True,
        ),
    )
    ENGINE_BUSY = "engine-busy", _Follows(rule="late-prefetch", explained_by=_LATE_PREFETCH)
    LATE_ISSUE = "late-issue", _Follows(rule="late-prefetch", explained_by=_LATE_PREFETCH, by_host=True)
    UNKNOWN = "unknown", _BY_HOST


class CommCause(Cause):
    """Cause of communication that ran while nothing computed."""

    LEAD_IN = "lead-in"
    SAME_STREAM = "same-stream", _Follows(explained_by=("exposed-comm",))
    HOST_SYNC = "host-sync", _Follows(explained_by=("exposed-comm", "host-sync"), by_host=True)
    LATE_COMPUTE = "late-compute", _Follows(explained_by=("exposed-comm", "dispatch", "python"), by_host=True)
    LAUNCH_LATENCY = "launch-latency"
    LATE_ISSUE = "late-issue", _Follows(explained_by=("exposed-comm",), by_host=True)
    BLOCKED_BEHIND = "blocked-behind", _Follows(explained_by=("exposed-comm",))
    WAITING_FOR_INPUT = "waiting-for-input", _Follows(explained_by=("exposed-comm",))
    STRAGGLER = "straggler"
    MESSAGE_WAIT = "message-wait"
    TRANSFER = "transfer"
    WAITING_OR_TRANSFER = "waiting-or-transfer"
    NO_COMPUTE = "no-compute"
    UNKNOWN = "unknown", _BY_HOST


class OtherCause(Cause):
    """Memory work that ran while no kernel and no copy between host and device did."""

    PEER_COPY = "peer-copy", _Follows(rule="peer-copy", explained_by=("peer-copy",))
    PAGE_MIGRATION = "page-migration", _Follows(rule="page-migration", explained_by=("page-migration",))
    DEVICE_COPY = "device-copy", _Follows(rule="device-copy", explained_by=("device-copy",))
    MEMSET = "memset"
    UNKNOWN = "unknown"


def _own_rule(rule: str, *others: str) -> _Follows:
    """Return what follows from an idle cause that the host decides, and that a rule explains first."""
    return _Follows(rule=rule, explained_by=(rule, *others), by_host=True)


class IdleCause(Cause):
    """Cause of a gap in which no GPU op ran."""

    HOST_SYNC = (
        "host-sync",
        _Follows(
            rule="host-sync",
            explained_by=("host-sync", "blocking-copy", "pageable-memory"),
            by_host=True,
            blames_call=True,
        ),
    )
    PYTHON = "python", _own_rule("python", "tiny-copies")
    DISPATCH = "dispatch", _own_rule("dispatch", "tiny-copies")
    CPU_OPS = "cpu-ops", _own_rule("cpu-ops")
    DATA_LOADING = "data-loading", _own_rule("data-loading")
    HOST_STAGING = (
        "host-staging",
        _Follows(
            rule="pageable-memory", explained_by=("pin-in-loop", "pageable-memory"), by_host=True, blames_call=True
        ),
    )
    ALLOCATION = (
        "allocation",
        _Follows(rule="allocation", explained_by=("allocation",), by_host=True, blames_call=True),
    )
    GC_PAUSE = "gc-pause", _own_rule("gc-pause")
    GIL_WAIT = "gil-wait", _own_rule("gil-wait")
    FILE_IO = "file-io", _own_rule("file-io")
    PREEMPTED = "preempted", _own_rule("preempted")
    CPU_THROTTLED = "cpu-throttled", _own_rule("cpu-throttled")
    EVENT_WAIT = "event-wait"
    PROFILER_OVERHEAD = "profiler-overhead", _BY_HOST
    LAUNCH_LATENCY = "launch-latency", _Follows(explained_by=("tiny-copies",))
    LEAD_IN = "lead-in"
    GRAPH_CAPTURE = "graph-capture", _BY_HOST
    GRAPH_GAP = "graph-gap"
    AWAITING_REQUESTS = "awaiting-requests"
    FIRST_LAUNCH = "first-launch", _BY_HOST
    NOT_RECORDED = "not-recorded", _BY_HOST
    MISSING_OPS = "missing-ops"
    UNRECORDED = "unrecorded", _BY_HOST  # Perhaps; then it varies most.
    UNKNOWN = "unknown", _BY_HOST


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
FOUND: Final[Mapping[Subject, tuple[Cause, ...]]] = {
    "exposed-comm": COMM_CAUSES,
    "exposed-copy": COPY_CAUSES,
    "exposed-other": OTHER_CAUSES,
    "idle": IDLE_CAUSES,
}
"""Causes that the trace of a single rank can show, by the kind of time."""
STALL_CAUSES: Final = tuple(cause for cause in IDLE_CAUSES if cause.blames_call)
"""Causes of idle time that blame a call: host stalls."""

WORK_CAUSES: Final = (IdleCause.PYTHON, IdleCause.CPU_OPS, IdleCause.DISPATCH)
"""Causes of idle time that a recording shows where the launching thread works."""
SAMPLED_CAUSES: Final = (IdleCause.FILE_IO, IdleCause.GIL_WAIT, IdleCause.CPU_THROTTLED, IdleCause.PREEMPTED)
"""Causes of idle time that only samples and facts of the host show."""

_KINDS: Final[Mapping[Subject, type[Cause]]] = {
    "exposed-copy": CopyCause,
    "exposed-comm": CommCause,
    "exposed-other": OtherCause,
    "idle": IdleCause,
}
CAUSES: Final[Mapping[Subject, Mapping[str, Cause]]] = {
    subject: {cause: cause for cause in causes} for subject, causes in _KINDS.items()
}
"""Causes by the kind of time that they explain, and by id."""
IDLE: Final = CAUSES["idle"]


@cache
def _words(table: str, gpu: str) -> CauseWords:
    return read_texts(Path(__file__).with_name("causes.toml"), CauseWords, gpu, table=table)
