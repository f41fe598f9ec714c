"""The causes an exposed copy or an idle gap can have, in the order in which they are tried.

`docs/causes.md` explains each for a user.
"""

from enum import StrEnum


class CopyCause(StrEnum):
    """Why a copy ran while nothing computed."""

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
    """Why no GPU op ran."""

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
