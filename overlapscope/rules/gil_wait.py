"""Rule: the GPU waits while another thread holds Python's lock."""

from __future__ import annotations

from overlapscope.catalog.causes import IdleCause
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._features import DATA_PARALLEL, features_of
from overlapscope.rules._lines import host_time, other_threads, sampled_lines
from overlapscope.rules.rule import Draft, Rule, on_claimed


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        afterword=f"{host_time(claims, pieces, IdleCause.GIL_WAIT)}{other_threads(claims)}{sampled_lines(claims)}",
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} while another thread holds Python's lock",
        detail="Samples of the program without the profiler show the launching thread waiting for the global "
        "interpreter lock.",
        advice=DATA_PARALLEL
        if features_of(claims.trace).data_parallel
        else "Move the other thread's work to a process.\n"
        "A thread that runs Python stops the launching thread for up to 5 ms at a time (sys.setswitchinterval). Use "
        "multiprocessing, DataLoader workers, or code that releases the lock.",
    )


RULE = Rule(
    id="gil-wait",
    severity="warning",
    check=on_claimed("gil-wait", _draft),
    fixes=(("less-host gil-wait",),),
    effort="restructuring",
)
