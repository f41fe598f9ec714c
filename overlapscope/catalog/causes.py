"""Causes of exposed copies, communication and other memory work, and of idle gaps, in the order of trying them.

`docs/how-it-works/causes.md` says how each is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct

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


class Cause(Struct, frozen=True):
    """A cause, with its texts and colors."""

    id: CopyCause | CommCause | OtherCause | IdleCause
    meaning: str
    """Meaning as a single sentence."""
    evidence: str
    """Meaning for a single call or op that shows it, as a clause whose subject is that call or op."""
    colors: tuple[str, str]
    """Colors `#rrggbb` for light and dark pages."""
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

EXPOSED_COMM: Final = _by_id(
    Cause(
        CommCause.LEAD_IN,
        meaning="The collective ran in the lead-in, so it has no known cause.",
        evidence="ran while the device still finished work that was queued before the recording",
        colors=("#d9c9dd", "#6a5a70"),
        remedy="Let the device catch up before recording.",
    ),
    Cause(
        CommCause.SAME_STREAM,
        meaning="The collective is on the stream that computes, which runs its ops one after the other.",
        evidence="runs in order with the compute of its own stream",
        colors=("#6a2c70", "#a04aa8"),
        remedy="Call the collective with async_op=True, so that it gets a stream of its own, and wait just before use.",
        elsewhere=("Give communication a stream of its own.", "Fixing same-stream order"),
        fixing="Fixing same-stream order",
        explained_by=("exposed-comm",),
    ),
    Cause(
        CommCause.HOST_SYNC,
        meaning="The host was blocked in a call, and launched late: the collective, or the compute that could hide it.",
        evidence="was launched, or the compute that could hide it, only after a blocking call had returned",
        colors=("#4a1d5e", "#7d4b9a"),
        remedy="Synchronize later, or not at all; keep memory in PyTorch's allocator.",
        elsewhere=("Synchronize later, or not at all.", "Removing the waits of the host"),
        fixing="Removing the waits of the host",
        explained_by=("exposed-comm", "host-sync"),
        by_host=True,
    ),
    Cause(
        CommCause.LATE_COMPUTE,
        meaning="The next compute did not wait for the collective, but the host had not launched it yet.",
        evidence="ran while the next compute, which does not wait for it, was not launched yet",
        colors=("#8d5a99", "#b98cc4"),
        remedy="Launch ahead: do less on the host between launches, or use CUDA graphs.",
        fixing="Launching compute earlier",
        explained_by=("exposed-comm", "dispatch", "python"),
        by_host=True,
    ),
    Cause(
        CommCause.LAUNCH_LATENCY,
        meaning="The gap before compute that was queued and did not wait for the collective, under 10 us.",
        evidence="ran between two queued kernels that do not wait for it",
        colors=("#c9b3cf", "#75617b"),
        remedy="Launch fewer and longer kernels.",
    ),
    Cause(
        CommCause.LATE_ISSUE,
        meaning="The host launched the collective late: its input was ready while compute ran that could hide it.",
        evidence="was launched late, after compute that it did not have to wait for",
        colors=("#9b4f96", "#c77dc2"),
        remedy="Launch the collective as soon as its input is ready; in FSDP, prefetch further ahead.",
        fixing="Issuing the collectives earlier",
        explained_by=("exposed-comm",),
        by_host=True,
    ),
    Cause(
        CommCause.BLOCKED_BEHIND,
        meaning="A collective was queued behind another one of its stream or communicator while compute ran, or could "
        "have run, that hides it.",
        evidence="was queued behind another collective while compute ran, or kept one waiting that compute needs",
        colors=("#b067b0", "#d79bd3"),
        remedy="Launch urgent collectives first, or send less in those ahead of it.",
        fixing="Queueing the collectives in another order",
        explained_by=("exposed-comm",),
    ),
    Cause(
        CommCause.WAITING_FOR_INPUT,
        meaning="The collective waited for a copy or another op that ran beside the compute that could hide it.",
        evidence="was launched, but waited for an op that ran beside the compute that could hide it",
        colors=("#c08ac9", "#e2b5e6"),
        remedy="Wait for less, or for something earlier.",
        fixing="Loosening the event waits",
        explained_by=("exposed-comm",),
    ),
    Cause(
        CommCause.STRAGGLER,
        meaning="The collective waited for the last rank. Only `overlapscope ranks` can tell.",
        evidence="waited for the last rank",
        colors=("#7b3f61", "#b06b92"),
        remedy="Speed up the rank that arrives last.",
    ),
    Cause(
        CommCause.MESSAGE_WAIT,
        meaning="A send or receive waited for its other side, as stages do while a pipeline fills and drains. Only "
        "`overlapscope ranks` can tell.",
        evidence="waited for the other side of a message",
        colors=("#95558a", "#c58bbb"),
        remedy="In a pipeline: more microbatches, stages of equal length, or a schedule with smaller bubbles.",
    ),
    Cause(
        CommCause.TRANSFER,
        meaning="The transfer outlasted the compute beside it. Only `overlapscope ranks` can tell.",
        evidence="took longer to transfer than the compute beside it",
        colors=("#a8708f", "#d19dbb"),
        remedy="Send less, or over a faster link.",
    ),
    Cause(
        CommCause.WAITING_OR_TRANSFER,
        meaning="The collective outlasted the compute beside it, waiting for another rank or transferring: a single "
        "trace cannot tell which.",
        evidence="outlasted the compute beside it, waiting for another rank or transferring",
        colors=("#b58aa6", "#dcb3cd"),
        remedy="Compare the ranks (overlapscope ranks); send less, or let more compute run before the result is used.",
    ),
    Cause(
        CommCause.NO_COMPUTE,
        meaning="Nothing was left to hide it: it needs the compute before it, and all compute after needs its result.",
        evidence="waited for the compute before it, and all later compute waits for its result",
        colors=("#cfb0d6", "#8a6f92"),
        remedy="Split the work, so that one part communicates while another computes, or communicate less.",
    ),
    Cause(
        CommCause.UNKNOWN,
        meaning="The recording does not show why.",
        evidence="ran alone for a reason that the recording does not show",
        colors=("#b7a9bb", "#7f7484"),
        by_host=True,
    ),
)
"""Causes of exposed communication, by id."""

EXPOSED_OTHER: Final = _by_id(
    Cause(
        OtherCause.PEER_COPY,
        meaning="A copy from one GPU to another ran, and no kernel beside it.",
        evidence="copied from one GPU to another while no kernel ran",
        colors=("#6b7d1e", "#b3c552"),
        remedy="Copy between GPUs on a stream of its own, and wait just before the result is used.",
        fixing="Copying between GPUs beside compute",
        rule="peer-copy",
        explained_by=("peer-copy",),
    ),
    Cause(
        OtherCause.PAGE_MIGRATION,
        meaning="Pages of managed memory moved between host and GPU, and no kernel ran.",
        evidence="moved pages of managed memory while no kernel ran",
        colors=("#8a5a00", "#d9a441"),
        remedy="Move the pages ahead with cudaMemPrefetchAsync.",
        fixing="Prefetching managed memory",
        rule="page-migration",
        explained_by=("page-migration",),
    ),
    Cause(
        OtherCause.DEVICE_COPY,
        meaning="A copy within the GPU's memory ran, and no kernel beside it.",
        evidence="copied within the GPU's memory while no kernel ran",
        colors=("#8f861f", "#bdb23a"),
        remedy="Copy less within the GPU: no contiguous(), clone() or cat() that can be avoided.",
        fixing="Copying less within the GPU",
        elsewhere=("Copy less within the GPU.", "Copying less within the GPU"),
        rule="device-copy",
        explained_by=("device-copy",),
    ),
    Cause(
        OtherCause.MEMSET,
        meaning="A memset ran, and nothing else.",
        evidence="filled memory while nothing else ran",
        colors=("#b5ad6a", "#8d8748"),
        remedy="Fill memory less often, or within the kernel that uses it.",
    ),
    Cause(
        OtherCause.UNKNOWN,
        meaning="A copy ran that the recording gives no direction for, and no kernel beside it.",
        evidence="the recording does not show from where to where it copied",
        colors=("#c2bfa5", "#7c7a66"),
    ),
)
"""Kinds of exposed memory work in and between GPUs, by id."""

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
        IdleCause.PYTHON,
        meaning="The launching thread was in Python, outside any CPU op and runtime call.",
        evidence="the launching thread was in Python, outside any CPU op and runtime call",
        colors=("#8b93a1", "#8a93a4"),
        remedy="Run less Python between launches, on another thread, or while the GPU is busy.",
        fixing="Running less Python between launches",
        elsewhere=(
            "Run less host code between launches, on another thread, or while the GPU is busy.",
            "Running less host code between launches",
        ),
        rule="python",
        explained_by=("python", "tiny-copies"),
        by_host=True,
    ),
    Cause(
        IdleCause.DISPATCH,
        meaning="The launching thread was inside launch calls and the ops that make them, and the GPU was faster.",
        evidence="the launching thread was inside an op that launches, or its launch call",
        colors=("#727b8e", "#a3abbd"),
        remedy="Launch less often: use CUDA graphs or torch.compile.",
        fixing="Launching with less work on the host (CUDA graphs, torch.compile)",
        elsewhere=("Use CUDA graphs.", "Launching with less work on the host (CUDA graphs)"),
        rule="dispatch",
        explained_by=("dispatch", "tiny-copies"),
        by_host=True,
    ),
    Cause(
        IdleCause.CPU_OPS,
        meaning="The launching thread ran ops on the CPU, which launch nothing.",
        evidence="the launching thread ran an op on the CPU",
        colors=("#5f7480", "#9fb4c0"),
        remedy="Run these ops on the GPU, on another thread, or while the GPU is busy.",
        fixing="Taking ops on the CPU out of the way",
        rule="cpu-ops",
        explained_by=("cpu-ops",),
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
        IdleCause.GC_PAUSE,
        meaning="Python's garbage collector held the launching thread.",
        evidence="Python's garbage collector held the launching thread",
        colors=("#7c6f58", "#bfb08f"),
        remedy="Call gc.freeze() after start-up, or collect between steps.",
        fixing="Collecting garbage less often",
        rule="gc-pause",
        explained_by=("gc-pause",),
        by_host=True,
    ),
    Cause(
        IdleCause.GIL_WAIT,
        meaning="The launching thread waited for Python's global interpreter lock, which another thread held.",
        evidence="the launching thread waited for Python's global interpreter lock",
        colors=("#6f6a80", "#b3accb"),
        remedy="Move the other thread's Python to a process.",
        fixing="Keeping other threads out of Python",
        rule="gil-wait",
        explained_by=("gil-wait",),
        by_host=True,
    ),
    Cause(
        IdleCause.FILE_IO,
        meaning="The launching thread read or wrote a file.",
        evidence="the launching thread read or wrote a file",
        colors=("#6b7a60", "#aebd9f"),
        remedy="Read and write files on another thread, or less often.",
        fixing="Taking files out of the loop",
        rule="file-io",
        explained_by=("file-io",),
        by_host=True,
    ),
    Cause(
        IdleCause.PREEMPTED,
        meaning="The launching thread could run, but other threads had its CPU.",
        evidence="the launching thread could run, but other threads had its CPU",
        colors=("#80656b", "#c7a5ac"),
        remedy="Run fewer threads and processes, or give the program more CPUs.",
        fixing="Leaving the launching thread a CPU",
        rule="preempted",
        explained_by=("preempted",),
        by_host=True,
    ),
    Cause(
        IdleCause.CPU_THROTTLED,
        meaning="The CPU quota of the program's control group was used up.",
        evidence="the CPU quota of the program's control group was used up",
        colors=("#866a52", "#cbb094"),
        remedy="Raise the container's CPU limit, or run fewer threads.",
        fixing="Raising the CPU limit",
        rule="cpu-throttled",
        explained_by=("cpu-throttled",),
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
        IdleCause.GRAPH_CAPTURE,
        meaning="The launching thread captured or instantiated a CUDA graph: what it launched there did not run.",
        evidence="the launching thread captured a CUDA graph, whose launches don't run yet",
        colors=("#9a8f78", "#94886c"),
        remedy="Record later, while the program launches the graph.",
        by_host=True,
    ),
    Cause(
        IdleCause.GRAPH_GAP,
        meaning="The gap lies in a launched CUDA graph.",
        evidence="the time between two ops of a launched CUDA graph",
        colors=("#b4c4c9", "#55666b"),
    ),
    Cause(
        IdleCause.AWAITING_REQUESTS,
        meaning="The server waited for requests.",
        evidence="the server waited for requests",
        colors=("#d3dcd3", "#4c554c"),
    ),
    Cause(
        IdleCause.FIRST_LAUNCH,
        meaning="The launching thread launched a kernel for the first time, and waited until its code was loaded.",
        evidence="its kernel was used for the first time, and its code had to be loaded",
        colors=("#a08a8c", "#a99193"),
        remedy="Run a few steps before recording: the first launch of a kernel loads its code.",
        by_host=True,
    ),
    Cause(
        IdleCause.NOT_RECORDED,
        meaning="The GPU waited for the host, and the recording does not show what the launching thread did.",
        evidence="nothing was recorded of what the launching thread did",
        colors=("#b9bfa8", "#5d6350"),
        remedy="Record what the host does: with CPU activities (ProfilerActivity.CPU), or with `overlapscope run`.",
        elsewhere=(
            "Record what the host does: with `overlapscope run` if it is PyTorch's, else with ranges around the "
            "program's phases (NVTX, jax.profiler.TraceAnnotation).",
            "",
        ),
        by_host=True,
    ),
    Cause(
        IdleCause.MISSING_OPS,
        meaning="The host waited for the GPU, but the trace has no op there, so the GPU's work is unknown.",
        evidence="the host waited for the GPU in this call, and the op that it waited for was not recorded",
        colors=("#c9bfae", "#6b6355"),
        remedy="Synchronize before recording; record from before CUDA graphs are captured.",
    ),
    Cause(
        IdleCause.UNRECORDED,
        meaning="A step without the profiler is longer than the recorded one by this time: the GPU's work is unknown.",
        evidence="a step without the profiler takes longer than the recorded one",
        colors=("#cfc5b4", "#5f584b"),
        remedy="Record more steps (--active), so that long ones are among them, at the same speed.",
        by_host=True,  # Perhaps; then it varies most.
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

CAUSES: Final[Mapping[Subject, Mapping[str, Cause]]] = {
    "exposed-copy": EXPOSED_COPY,
    "exposed-comm": EXPOSED_COMM,
    "exposed-other": EXPOSED_OTHER,
    "idle": IDLE,
}
"""Causes by the kind of time that they explain, and by id."""
STALL_CAUSES: Final = tuple(cause for cause in IDLE_CAUSES if IDLE[cause].blames_call)
"""Causes of idle time that blame a call: host stalls."""
