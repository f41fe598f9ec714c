"""Causes of exposed copies and of idle gaps, in the order in which they are tried.

`docs/how-it-works/causes.md` says how each is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct

Subject = Literal["exposed-copy", "idle"]
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


class IdleCause(StrEnum):
    """Cause of a gap in which no GPU op ran."""

    HOST_SYNC = "host-sync"
    LAUNCH_BOUND = "launch-bound"
    DATA_LOADING = "data-loading"
    HOST_STAGING = "host-staging"
    ALLOCATION = "allocation"
    HOST_COMPUTE = "host-compute"
    EVENT_WAIT = "event-wait"
    PROFILER_OVERHEAD = "profiler-overhead"
    LAUNCH_LATENCY = "launch-latency"
    LEAD_IN = "lead-in"
    MISSING_OPS = "missing-ops"
    UNKNOWN = "unknown"


COPY_CAUSES = tuple(CopyCause)
IDLE_CAUSES = tuple(IdleCause)
COPY_RANK = {cause: rank for rank, cause in enumerate(COPY_CAUSES)}
IDLE_RANK = {cause: rank for rank, cause in enumerate(IDLE_CAUSES)}


class Cause(Struct, frozen=True):
    """A cause, with all its words and colours."""

    id: CopyCause | IdleCause
    meaning: str
    """Meaning as a single sentence."""
    evidence: str
    """Meaning for a single call or op that shows it, without a subject."""
    colors: tuple[str, str]
    """Colours `#rrggbb` for light and dark pages."""
    remedy: str = ""
    """Remedy in a sentence; empty if there is none."""
    fixing: str = ""
    """Remedy as the subject of a sentence, such as `Pinning the host memory`."""
    elsewhere: tuple[str, str] | None = None
    """`remedy` and `fixing` for traces of other recorders than torch.profiler, if they differ."""
    rule: str = ""
    """Rule that gets the cause's time unless another rule claims it; empty if there is none."""
    explained_by: tuple[str, ...] = ()
    """Rules whose findings may explain it, the most likely first."""
    by_host: bool = False
    """True if the speed of the host decides how long it lasts."""
    blames_call: bool = False
    """True if it is due to the call that the host was inside, which is the place to look at."""

    def helps(self, recorder: str) -> tuple[str, str]:
        """Return `remedy` and `fixing` for a trace of this recorder (`Trace.recorder`)."""
        return (self.remedy, self.fixing) if recorder == "kineto" or self.elsewhere is None else self.elsewhere


def _by_id(*causes: Cause) -> dict[str, Cause]:
    return {cause.id: cause for cause in causes}


EXPOSED_COPY: Final = _by_id(
    Cause(
        CopyCause.LEAD_IN,
        meaning="The copy ran in the lead-in, while the device finished work that was queued before the recording, "
        "so it has no known cause.",
        evidence="ran while the device still finished work that was queued before the recording",
        colors=("#e3c4b4", "#7d5a4a"),
        remedy="Let the device catch up before recording.",
    ),
    Cause(
        CopyCause.PAGEABLE_MEMORY,
        meaning="The host memory is pageable: the driver stages the copy, the call blocks, and the copy is slower.",
        evidence="the host side is pageable: the driver stages it and the call blocks",
        colors=("#d15600", "#e2571a"),
        remedy="Pin the host memory once, outside the loop.",
        fixing="Pinning the host memory",
        rule="pageable-memory",
        explained_by=("pageable-memory", "tiny-copies"),
    ),
    Cause(
        CopyCause.NO_COMPUTE,
        meaning="Copies take longer than compute: in any order, this much of them stays exposed.",
        evidence="copies outlast compute in this step; this much cannot be hidden",
        colors=("#f0a98a", "#f5bda3"),
        remedy="Copy less, or compute more for each copy.",
        explained_by=("one-way-copies", "tiny-copies", "slow-link"),
    ),
    Cause(
        CopyCause.SAME_STREAM,
        meaning="The compute that could hide the copy is on the same stream, which runs its ops one after the other.",
        evidence="runs in order with the compute of its own stream",
        colors=("#a33b00", "#b8430c"),
        remedy="Issue copies on a stream of their own.",
        fixing="Fixing same-stream order",
        rule="same-stream",
        explained_by=("same-stream", "tiny-copies"),
    ),
    Cause(
        CopyCause.EVENT_WAIT,
        meaning="An event wait ordered the copy before or after the compute that could hide it.",
        evidence="an event wait orders it against compute",
        colors=("#ee8866", "#ee8f6f"),
        remedy="Wait for less, or for something earlier.",
        fixing="Loosening the event waits",
        rule="late-prefetch",
        explained_by=("late-prefetch", "tiny-copies"),
    ),
    Cause(
        CopyCause.HOST_SYNC,
        meaning="The compute that could hide the copy was not launched yet: the host was blocked in a synchronize.",
        evidence="the next compute was launched only after a blocking call had returned",
        colors=("#7a2a12", "#93402a"),
        remedy="Synchronize later, or not at all.",
        fixing="Removing the waits of the host",
        rule="host-sync",
        explained_by=("host-sync", "blocking-copy", "pageable-memory", "tiny-copies"),
        by_host=True,
    ),
    Cause(
        CopyCause.ENGINE_BUSY,
        meaning="The copy was queued behind copies of the same direction until compute had run out.",
        evidence="queued behind copies of the same direction until compute had run out",
        colors=("#c4574b", "#dd7a6e"),
        remedy="Issue urgent copies first, or split large ones.",
        fixing="Queueing the copies in another order",
        rule="late-prefetch",
        explained_by=("late-prefetch", "tiny-copies"),
    ),
    Cause(
        CopyCause.LATE_ISSUE,
        meaning="The copy was issued only after the compute that could hide it had ended.",
        evidence="started right when it was issued, after the compute that could hide it",
        colors=("#e0703a", "#ff9f70"),
        remedy="Issue the copy one step earlier.",
        fixing="Issuing the copies earlier",
        rule="late-prefetch",
        explained_by=("late-prefetch", "tiny-copies"),
        by_host=True,
    ),
    Cause(
        CopyCause.UNKNOWN,
        meaning="The recording does not show why.",
        evidence="the recording does not show why",
        colors=("#c9a797", "#96796b"),
        by_host=True,
    ),
)
"""Causes of exposed copies, by id."""

IDLE: Final = _by_id(
    Cause(
        IdleCause.HOST_SYNC,
        meaning="The host launched the next work only after a blocking call had returned.",
        evidence="launching resumed only after this call returned",
        colors=("#4d5366", "#c6cbdb"),
        remedy="Synchronize less: no .item(), .cpu() or print of a tensor in the loop.",
        elsewhere=("Synchronize less: do not read results back in the loop.", "Removing the waits of the host"),
        fixing="Removing the waits of the host",
        rule="host-sync",
        explained_by=("host-sync", "blocking-copy", "pageable-memory"),
        by_host=True,
        blames_call=True,
    ),
    Cause(
        IdleCause.LAUNCH_BOUND,
        meaning="The host launched as fast as it could, and the GPU was faster.",
        evidence="launches followed one another as fast as the host could issue them",
        colors=("#727b8e", "#a3abbd"),
        remedy="Use CUDA graphs or torch.compile.",
        fixing="Launching with less work on the host (CUDA graphs, torch.compile)",
        elsewhere=("Use CUDA graphs.", "Launching with less work on the host (CUDA graphs)"),
        rule="launch-bound",
        explained_by=("launch-bound", "tiny-copies"),
        by_host=True,
    ),
    Cause(
        IdleCause.DATA_LOADING,
        meaning="The launching thread was inside the DataLoader's next().",
        evidence="the launching thread was inside the DataLoader's next()",
        colors=("#66786c", "#a4b8aa"),
        remedy="Use more DataLoader workers, and prefetch.",
        fixing="Loading the data ahead",
        elsewhere=("Load data in other threads or processes, ahead of its use.", "Loading the data ahead"),
        rule="data-loading",
        explained_by=("data-loading",),
        by_host=True,
    ),
    Cause(
        IdleCause.HOST_STAGING,
        meaning="The host was staging a pageable upload, or pinning memory.",
        evidence="the host was pinning memory or staging a pageable copy",
        colors=("#8a7768", "#c2ae9e"),
        remedy="Pin once, outside the loop.",
        fixing="Keeping pinned memory out of the loop",
        rule="pageable-memory",
        explained_by=("pin-in-loop", "pageable-memory"),
        by_host=True,
        blames_call=True,
    ),
    Cause(
        IdleCause.ALLOCATION,
        meaning="The host was inside a memory call of the driver, such as cudaMalloc or cudaFree.",
        evidence="the host was inside a memory call of the driver",
        colors=("#7b6672", "#b9a2af"),
        remedy="Keep memory in PyTorch's allocator.",
        fixing="Keeping allocation out of the loop",
        elsewhere=("Allocate GPU memory once, before the loop.", "Keeping allocation out of the loop"),
        rule="allocation",
        explained_by=("allocation",),
        by_host=True,
        blames_call=True,
    ),
    Cause(
        IdleCause.HOST_COMPUTE,
        meaning="The host ran other CPU ops or Python and launched nothing.",
        evidence="the host ran CPU ops or Python without launching",
        colors=("#8b93a1", "#8a93a4"),
        remedy="Move that work off the launching thread, or overlap it.",
        fixing="Taking work off the host between launches",
        rule="host-compute",
        explained_by=("host-compute",),
        by_host=True,
    ),
    Cause(
        IdleCause.EVENT_WAIT,
        meaning="The next op was queued, but the work that it waited for through an event had not ended.",
        evidence="the next op was queued behind an event wait",
        colors=("#65617d", "#aaa5c7"),
        remedy="Wait for less, or for something earlier.",
        fixing="Loosening the event waits",
    ),
    Cause(
        IdleCause.PROFILER_OVERHEAD,
        meaning="The profiler itself held the host. Without the profiler this time is gone.",
        evidence="the profiler itself held the host",
        colors=("#b3b8c0", "#6b7280"),
        by_host=True,
    ),
    Cause(
        IdleCause.LAUNCH_LATENCY,
        meaning="The gap between an op and the next queued op, under 10 us.",
        evidence="the time between a launch and its start, or between two queued ops",
        colors=("#c3c7cd", "#5a606b"),
        explained_by=("tiny-copies",),
    ),
    Cause(
        IdleCause.LEAD_IN,
        meaning="The gap lies in the lead-in, where ops may be missing.",
        evidence="in the lead-in, where ops may be missing",
        colors=("#d9dce1", "#454a53"),
    ),
    Cause(
        IdleCause.MISSING_OPS,
        meaning="The host waited for the GPU, but the trace has no op there, so the GPU's work is unknown.",
        evidence="the host waited for the GPU in this call, and the op that it waited for was not recorded",
        colors=("#c9bfae", "#6b6355"),
        remedy="Synchronize before recording; record from before CUDA graphs are captured.",
    ),
    Cause(
        IdleCause.UNKNOWN,
        meaning="The recording does not show why.",
        evidence="the recording does not show why",
        colors=("#a6a6a6", "#787878"),
        by_host=True,
    ),
)
"""Causes of idle time, by id."""

CAUSES: Final[Mapping[Subject, Mapping[str, Cause]]] = {"exposed-copy": EXPOSED_COPY, "idle": IDLE}
"""Causes by the kind of time that they explain, and by id."""
STALL_CAUSES: Final = tuple(cause for cause in IDLE_CAUSES if IDLE[cause].blames_call)
"""Causes of idle time that blame a call: host stalls."""
