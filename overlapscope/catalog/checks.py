"""Trust checks that a trace must pass before its numbers are believed (`docs/how-it-works/trust.md`)."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class TrustCheck(Struct, frozen=True):
    """A trust check, with its texts."""

    id: str
    meaning: str
    """Condition for a warning or failure, as a single sentence."""
    affects: str
    """Doubtful results if it warns or fails."""
    remedy: str
    """Remedy, to get a trace that passes."""
    comparable: str = "All figures; keep the warning in mind."
    """Figures that can still be compared with another recording if it warns or fails."""
    grave: str = ""
    """Sentence for a trace that this check alone makes worthless; empty if other checks may matter as much."""


_WITHOUT_LOST: Final = "All figures except those that rest on the parts that it names as lost."

CHECKS: Final = {
    check.id: check
    for check in (
        TrustCheck(
            "file-complete",
            meaning="Warns if the file is cut off.",
            affects="Everything after the cut is missing.",
            remedy="Record again, and let the program end by itself: the file is written when the recording ends.",
            grave="the file is cut",
            comparable=_WITHOUT_LOST,
        ),
        TrustCheck(
            "events-readable",
            meaning="Warns if events were damaged or lost.",
            affects="Lost events are missing everywhere.",
            remedy="Copy the file again from where it was written. If it is damaged there too, record again.",
            comparable=_WITHOUT_LOST,
        ),
        TrustCheck(
            "durations",
            meaning="Warns if events have no duration, or were left out because their times are impossible.",
            affects="The GPU may look idle where these events ran. Events of the host that can't have lasted long "
            "touch nothing.",
            remedy="Record again.",
            comparable=_WITHOUT_LOST,
        ),
        TrustCheck(
            "copy-sizes",
            meaning="Warns if a copy moved more bytes than is possible.",
            affects="Bytes and bandwidths leave these ops out, and their times may be wrong.",
            remedy="Record again.",
            comparable=_WITHOUT_LOST,
        ),
        TrustCheck(
            "copy-directions",
            meaning="Warns if the direction of copies is unknown.",
            affects="Such copies count as work within the device, though they may be copies between host and device.",
            remedy="Record again with a recorder that names copies, such as `overlapscope run`.",
            comparable=_WITHOUT_LOST,
        ),
        TrustCheck(
            "gpu-activity",
            meaning="Fails if nothing ran on a GPU, if the recording lost it, or if it is of graph captures or a "
            "server's front end.",
            affects="Everything is unknown.",
            remedy="Record with CUDA activities, as `overlapscope run` does. If no kernel appears, stop other "
            "profilers of the GPU, such as nsys.",
            grave="no GPU op can be judged",
        ),
        TrustCheck(
            "clock-skew",
            meaning="Warns if GPU ops begin before their launch; fails if they begin over 1 ms before it.",
            affects="Causes on the host are inexact; if the check failed, they are unknown.",
            remedy="Record again, and do not set the system clock during the recording.",
            comparable="Copies, kernels and buckets, but not causes that need the host.",
        ),
        TrustCheck(
            "dropped-ops",
            meaning="Warns if recorded launches have no GPU op; fails if none has one.",
            affects="Figures of the kinds of ops that are missing; where nothing else ran, the GPU's work is unknown. "
            "Launches right before the end of the recording do not count: their ops ran after it.",
            remedy="Record fewer steps (`--active`; nsys: a shorter capture), or fewer kinds of events (`--light`). If "
            "no op was recorded, synchronize before the profiler stops, give it a warm-up step, let the user read the "
            "GPU's records (NVIDIA's ERR_NVGPUCTRPERM), and stop other profilers.",
            comparable=_WITHOUT_LOST,
        ),
        TrustCheck(
            "graphs",
            meaning="Warns if CUDA graphs were recorded as one op each.",
            affects="Copies, communication and idle time inside a graph count as compute.",
            remedy="Record with `nsys profile --cuda-graph-trace=node`.",
            comparable=_WITHOUT_LOST,
        ),
        TrustCheck(
            "launches",
            meaning="Warns if launches are missing after the lead-in; fails if no launch was recorded.",
            affects="Causes of idle time are inexact. If the check failed, the lead-in, steps and causes of idle time "
            "are unknown.",
            remedy="Record with CPU activities too. Record again if launches are still missing.",
            comparable="Copies, kernels and the buckets of the window, but not steps and causes.",
        ),
        TrustCheck(
            "lead-in",
            meaning="Warns if the device spent over 10% of the window on work queued before the recording; fails if "
            "that took over half of it and fewer than two whole steps are left.",
            affects="That part counts in the buckets, but no cause, finding or step covers it. If the check failed, "
            "too little is judged for any verdict.",
            remedy="Let the device catch up before the recording: `overlapscope run` does so. Elsewhere, call "
            "`torch.cuda.synchronize()` before the first recorded step.",
            comparable="The steps after it.",
        ),
        TrustCheck(
            "missing-ops",
            meaning="Warns if the host waited for the GPU while no op ran; fails if that took over 10% of the window.",
            affects="The GPU's work in that time is unknown, so it counts neither as idle nor as work.",
            remedy="Synchronize before the recording begins, record from before CUDA graphs are captured, run loops of "
            "graphs (conditional nodes) in the host's code while recording, and stop other processes on the GPU.",
            comparable="The steps without such waits.",
        ),
        TrustCheck(
            "stream-order",
            meaning="Warns if ops of one stream overlap, which cannot happen on a GPU.",
            affects="Some durations are wrong.",
            remedy="Record again.",
        ),
        TrustCheck(
            "sync-events",
            meaning="Warns if the recording has event waits, but does not state what they waited for.",
            affects="Waits between streams were rebuilt from the order of calls; evidence based on them says so.",
            remedy="Record with `overlapscope run`, or set `enable_cuda_sync_events=True` in the profiler's "
            "`experimental_config`. With Nsight Systems, record with `--cuda-event-trace=true`.",
        ),
        TrustCheck(
            "steps",
            meaning="Warns if steps launched nothing on the main stream, if step numbers are missing, or if steps "
            "found by repetition are less than 90% regular.",
            affects="Figures by step leave those steps out.",
            remedy="Call `step()` once at the end of each step, in the thread that launches the work.",
            comparable="The steps that were recorded.",
        ),
        TrustCheck(
            "warm-up",
            meaning="Warns if the first step took far longer than the others.",
            affects="Leave that step out when you compare.",
            remedy="Record later (`--wait`). `check` leaves the step out by itself.",
        ),
        TrustCheck(
            "steady-state",
            meaning="Warns if the recorded steps are not typical of the program.",
            affects="Figures of steps hold for the recording; a typical step may differ.",
            remedy="Record more steps (`--active`), or begin later (`--wait`).",
        ),
        TrustCheck(
            "step-skew",
            meaning="Warns if side streams run two or more steps ahead of the main stream.",
            affects="The figures of a step leave out copies that ran early for it.",
            remedy="Judge several steps together, or the window; do not compare single steps.",
        ),
        TrustCheck(
            "profiler-overhead",
            meaning="Warns if the profiler itself took part of the window.",
            affects="Idle time in it has cause profiler-overhead; without the profiler it is gone.",
            remedy="Record without stacks, shapes and memory, or with `--light`.",
        ),
    )
}
"""Checks by id, in the order in which they are made."""


def check_by_id(id: str) -> TrustCheck:
    """Return the record of a check; a generic one for an unknown check in a report of another version."""
    return CHECKS.get(id) or TrustCheck(id, meaning="", affects="", remedy="")
