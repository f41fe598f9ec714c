"""Each cause in one line, and what helps: the words beside every chart and table of causes.

`docs/causes.md` says how each is decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from overlapscope.analysis.causes import CopyCause, IdleCause


@dataclass(frozen=True, slots=True)
class Words:
    """What a cause means, and what helps against it; empty where nothing does."""

    meaning: str
    help: str = ""


EXPOSED_COPY: Final[dict[str, Words]] = {
    CopyCause.LEAD_IN: Words(
        "It ran while the device still worked off what was queued before the recording; nothing can be said.",
        "Let the device catch up before recording.",
    ),
    CopyCause.PAGEABLE_MEMORY: Words(
        "The host side is pageable: the driver stages it, the call blocks, and the copy itself is slower.",
        "Pin the host memory once, outside the loop.",
    ),
    CopyCause.NO_COMPUTE: Words(
        "Copies outlast compute: whatever the order, this much cannot be hidden.",
        "Copy less, or compute more for each copy.",
    ),
    CopyCause.SAME_STREAM: Words(
        "The compute that could hide it sits on its own stream, so order forbids overlap.",
        "Give copies a stream of their own.",
    ),
    CopyCause.EVENT_WAIT: Words(
        "An event wait ordered it against compute.",
        "Wait for less, or for something earlier.",
    ),
    CopyCause.HOST_SYNC: Words(
        "Compute that could have run was not launched yet: the host was blocked in a synchronize.",
        "Synchronize later, or not at all.",
    ),
    CopyCause.ENGINE_BUSY: Words(
        "It queued behind copies of its direction until compute had run out.",
        "Issue it first, or split the big ones.",
    ),
    CopyCause.LATE_ISSUE: Words(
        "It was issued only after the compute that could have hidden it was over.",
        "Issue it a step earlier.",
    ),
    CopyCause.UNKNOWN: Words("No cause can be shown from this recording."),
}

IDLE: Final[dict[str, Words]] = {
    IdleCause.HOST_SYNC: Words(
        "Launching resumed only after a blocking call had returned.",
        "Synchronize less: no .item(), .cpu() or print of a tensor in the loop.",
    ),
    IdleCause.LAUNCH_BOUND: Words(
        "The host launched as fast as it could, and the GPU was faster.",
        "CUDA graphs or torch.compile.",
    ),
    IdleCause.DATA_LOADING: Words(
        "The launching thread was inside a DataLoader's next.",
        "More workers, and prefetching.",
    ),
    IdleCause.HOST_STAGING: Words(
        "The host was staging a pageable upload, or pinning memory.",
        "Pin once, outside the loop.",
    ),
    IdleCause.ALLOCATION: Words(
        "The host was inside a memory call of the driver.",
        "Keep memory in PyTorch's allocator.",
    ),
    IdleCause.HOST_COMPUTE: Words(
        "The host ran other CPU ops or Python and launched nothing.",
        "Move that work off the launching thread, or overlap it.",
    ),
    IdleCause.EVENT_WAIT: Words(
        "The next op was queued; what it waited for by event had not ended.",
        "Wait for less, or for something earlier.",
    ),
    IdleCause.PROFILER_OVERHEAD: Words("The profiler itself held the host; it is gone when nothing is recorded."),
    IdleCause.LAUNCH_LATENCY: Words("Under 10 us between an op and the queued one behind it."),
    IdleCause.LEAD_IN: Words("It lies in the lead-in, where ops may be missing."),
    IdleCause.MISSING_OPS: Words(
        "The host waited for the GPU, and the trace has no op there: what the GPU did is unknown.",
        "Synchronize before recording; record from before CUDA graphs are captured.",
    ),
    IdleCause.UNKNOWN: Words("No cause can be shown from this recording."),
}
