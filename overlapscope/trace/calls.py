"""Kinds of runtime calls by their meaning for the host, judged once per distinct name.

Sources: the CUDA Runtime and Driver API references, which state the calls that return only when work is done and those
that take the driver's allocation locks, and the equivalents in the HIP API, whose names differ only in the prefix.
"""

import re
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import mask_of, pick
from overlapscope.base.intervals import contains, total, union
from overlapscope.base.kept import kept
from overlapscope.trace import op_names
from overlapscope.trace.model import Bool, Index, RuntimeCalls, Trace

# Suffixes of the same entry point: per-thread default streams, versioned symbols, and ROCm's stream-per-thread mode.
_SUFFIX = r"(_v\d+|_ptsz|_ptds|_spt)*"


Selector = Callable[[RuntimeCalls], Bool]


def selects(pattern: str) -> Selector:
    """Return a function that selects the calls whose whole name matches, with any of its symbol suffixes."""
    compiled = re.compile(f"(?:{pattern}){_SUFFIX}")
    return lambda calls: calls.named(compiled.fullmatch)


synchronises = selects(
    r"(cuda|hip)(Stream|Device|Event)Synchronize|cuStreamSynchronize|cuCtxSynchronize|cuEventSynchronize"
    r"|hipCtxSynchronize|(cuda|hip)ThreadSynchronize|zeEventHostSynchronize|zeCommandQueueSynchronize"
    r"|zeFenceHostSynchronize|zeCommandListHostSynchronize|urEventWait|urQueueFinish|piEventsWait|piQueueFinish"
    r"|aclrtSynchronize(Stream|Device|Event)(WithTimeout)?"
    f"|{op_names.XLA_WAIT.pattern}"
)
"""Calls that return when a stream, device or event has finished."""
copies_blocking = selects(
    r"(cuda|hip)Memcpy(2D|3D|Peer|ToSymbol|FromSymbol|WithStream)?|cuMemcpy([HD]to[HD])?|aclrtMemcpy(2d)?"
)
"""Copy calls that wait for themselves by contract."""
copies_async = selects(r"(cuda|hip)Memcpy\w*Async|cuMemcpy\w*Async|hipMemcpy\w*Async|aclrtMemcpy\w*Async")
"""Copy calls that return early unless the host side is pageable."""
sets_memory = selects(r"(cuda|hip)Memset\w*|cuMemset\w*")
"""Calls that fill memory."""
allocates = selects(
    r"(cuda|hip)(Malloc|Free|HostAlloc|MallocHost|HostMalloc|FreeHost|HostFree|MallocManaged|MallocPitch"
    r"|HostRegister|HostUnregister|ExtMallocWithFlags)"
    r"|(cu|hip)Mem(Alloc|Free|AllocHost|FreeHost|HostAlloc|HostRegister|HostUnregister|AllocManaged|AllocPitch"
    r"|Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree)"
    r"|aclrt(Malloc(Align32|Cached|Host)?|Free(Host)?|HostRegister|HostUnregister|ReserveMemAddress|ReleaseMemAddress"
    r"|MallocPhysical|FreePhysical|MapMem|UnmapMem)"
    r"|urUSM((Host|Device|Shared)Alloc|Free)|zeMem(Alloc(Host|Device|Shared)|Free)"
)
"""Calls that allocate or free memory of the driver."""
pins = selects(
    r"(cuda|hip)(HostAlloc|MallocHost|HostMalloc|HostRegister|HostUnregister)|cuMem(AllocHost|HostAlloc|HostRegister)"
    r"|aclrt(MallocHost|HostRegister|HostUnregister)|urUSMHostAlloc|zeMemAllocHost"
)
"""Calls of `allocates` that page-lock host memory."""
waits_event = selects(r"(cuda|hip)StreamWaitEvent|cuStreamWaitEvent|aclrtStreamWaitEvent(WithTimeout)?")
"""Calls that make a stream wait for an event, without making the host wait."""
records_event = selects(r"(cuda|hip)EventRecord(WithFlags)?|cuEventRecord(WithFlags)?|aclrtRecordEvent")
"""Calls that record an event on a stream."""
launches_kernel = selects(r"(cuda|hip|cu)Launch\w*Kernel\w*|hipModuleLaunchKernel|hipExt\w*Launch\w*|Node@launch")
"""Calls that launch a kernel."""
launches_graph = selects(r"(cuda|hip|cu)GraphLaunch")
"""Calls that launch a CUDA graph."""
enqueues = selects(r"Enqueue(@.+)?")
"""Calls that put a task into torch_npu's queue, from which another thread launches it."""


_begins_capture = selects(r"(cuda|hip)StreamBeginCapture\w*|cuStreamBeginCapture")
ends_capture = selects(r"(cuda|hip)StreamEndCapture|cuStreamEndCapture")
"""Calls that end the capture of a graph."""
_instantiates = selects(r"(cuda|hip|cu)GraphInstantiate\w*")
loads_code = selects(
    r"(cu|hip)(Module|Library)(Load|Get)\w*|(cuda|hip)Func[GS]etAttributes?|(cuda|hip)GetSymbolAddress"
    r"|(cuda|hip|cu)(Module)?Occupancy\w*"
)
"""Calls that load a kernel's code if it isn't on the GPU yet."""


@kept()
def capturing(trace: Trace) -> RuntimeCalls:
    """Return the times in which threads captured a graph."""
    calls = trace.runtime_calls
    begins, ends = np.flatnonzero(_begins_capture(calls)), np.flatnonzero(ends_capture(calls))
    last = pick(ends, np.searchsorted(ends, begins))
    until = np.where(last >= 0, calls.end_ns[last], calls.end_ns.max(initial=0))
    return replace(calls.take(begins), end_ns=until)


@kept()
def captures(trace: Trace) -> RuntimeCalls:
    """Return the times in which threads captured or instantiated a graph, so that their launches ran nothing."""
    instantiated = trace.runtime_calls.take(np.flatnonzero(_instantiates(trace.runtime_calls)))
    return RuntimeCalls.joined([capturing(trace), instantiated])


def records_captures(trace: Trace) -> bool:
    """Return whether a recording is of captures of graphs, so that it says nothing of the program that launches them.

    Then captures take longer than all work of the GPU, and most of the time, or of the launches, is theirs. Hardly any
    graph is launched.
    """
    calls, when = trace.runtime_calls, captures(trace)
    graphs = int(_begins_capture(calls).sum())
    if not graphs or int(launches_graph(calls).sum()) > graphs:
        return False
    captured = union(when.start_ns, when.end_ns)
    captured_ns, ran_ns = total(captured), total(union(trace.gpu_ops.start_ns, trace.gpu_ops.end_ns))
    launched_ns = calls.start_ns[launches_kernel(calls)]
    inside = int(contains(captured, launched_ns).sum())
    begins, ends = ((getattr(part, side) for part in (calls, trace.gpu_ops)) for side in ("start_ns", "end_ns"))
    span_ns = max(int(part.max(initial=0)) for part in ends) - min(int(part.min()) for part in begins if len(part))
    return captured_ns > ran_ns and (2 * captured_ns > span_ns or 2 * inside > len(launched_ns))


def launching(trace: Trace) -> Index:
    """Return the rows of the calls that launched a GPU op, in ascending order."""
    launch = trace.gpu_ops.launch
    return np.flatnonzero(mask_of(launch[launch >= 0], len(trace.runtime_calls)))
