"""Runtime calls by what they mean for the host, judged once per distinct name.

Sources: the CUDA Runtime and Driver API references (which calls return only when work is done, and which take
the driver's allocation locks) and the HIP API's equivalents, whose names differ in the prefix alone.
"""

import re

import numpy as np

from overlapscope.trace.model import Bool, Index, RuntimeCalls, Trace

# The same entry point under per-thread default streams, a versioned symbol, or ROCm's stream-per-thread mode.
_SUFFIX = r"(_v\d+|_ptsz|_ptds|_spt)*"


def whole_name(pattern: str) -> re.Pattern[str]:
    """Calls whose whole name matches, under any of its symbol suffixes."""
    return re.compile(f"(?:{pattern}){_SUFFIX}")


_SYNC = whole_name(
    r"(cuda|hip)(Stream|Device|Event)Synchronize|cuStreamSynchronize|cuCtxSynchronize|cuEventSynchronize"
    r"|hipCtxSynchronize|(cuda|hip)ThreadSynchronize|zeEventHostSynchronize|zeCommandQueueSynchronize"
    r"|zeFenceHostSynchronize|zeCommandListHostSynchronize|urEventWait|urQueueFinish|piEventsWait|piQueueFinish"
)
_BLOCKING_COPY = whole_name(r"(cuda|hip)Memcpy(2D|3D|Peer|ToSymbol|FromSymbol|WithStream)?|cuMemcpy([HD]to[HD])?")
_ASYNC_COPY = whole_name(r"(cuda|hip)Memcpy\w*Async|cuMemcpy\w*Async|hipMemcpy\w*Async")
_ALLOCATION = whole_name(
    r"(cuda|hip)(Malloc|Free|HostAlloc|MallocHost|HostMalloc|FreeHost|HostFree|MallocManaged|MallocPitch"
    r"|HostRegister|HostUnregister|ExtMallocWithFlags)"
    r"|(cu|hip)Mem(Alloc|Free|AllocHost|FreeHost|HostAlloc|HostRegister|HostUnregister|AllocManaged|AllocPitch"
    r"|Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree)"
)
_PINNING = whole_name(
    r"(cuda|hip)(HostAlloc|MallocHost|HostMalloc|HostRegister|HostUnregister)|cuMem(AllocHost|HostAlloc|HostRegister)"
)
_WAIT_EVENT = whole_name(r"(cuda|hip)StreamWaitEvent|cuStreamWaitEvent")
_RECORD_EVENT = whole_name(r"(cuda|hip)EventRecord(WithFlags)?|cuEventRecord(WithFlags)?")


def launching(trace: Trace) -> Index:
    """Rows of the calls that launched a GPU op, in ascending order."""
    launches = np.zeros(len(trace.runtime_calls), np.bool_)
    launches[trace.gpu_ops.launch[trace.gpu_ops.launch >= 0]] = True
    return np.flatnonzero(launches)


def named(calls: RuntimeCalls, pattern: re.Pattern[str]) -> Bool:
    """Calls whose whole name matches."""
    return calls.named(lambda name: pattern.fullmatch(name) is not None)


def synchronises(calls: RuntimeCalls) -> Bool:
    """Calls that return when a stream, device or event has finished."""
    return named(calls, _SYNC)


def copies_blocking(calls: RuntimeCalls) -> Bool:
    """Copy calls that wait for themselves by contract."""
    return named(calls, _BLOCKING_COPY)


def copies_async(calls: RuntimeCalls) -> Bool:
    """Copy calls that may return early, and do unless the host side is pageable."""
    return named(calls, _ASYNC_COPY)


def allocates(calls: RuntimeCalls) -> Bool:
    """Calls that give or take memory from the driver."""
    return named(calls, _ALLOCATION)


def pins(calls: RuntimeCalls) -> Bool:
    """Those of them that page-lock host memory."""
    return named(calls, _PINNING)


def waits_event(calls: RuntimeCalls) -> Bool:
    """Calls that make a stream wait for an event; the host does not wait."""
    return named(calls, _WAIT_EVENT)


def records_event(calls: RuntimeCalls) -> Bool:
    """Calls that record an event on a stream."""
    return named(calls, _RECORD_EVENT)
