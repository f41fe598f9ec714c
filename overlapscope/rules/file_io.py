"""Rule: the GPU waits while the launching thread reads or writes files."""

from __future__ import annotations

from overlapscope.base.words import listed
from overlapscope.catalog.causes import IdleCause
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._lines import host_time, is_not_torch, most_in, top_line, with_lines
from overlapscope.rules.rule import Draft, Rule, name, on_claimed


def _files(claims: Claims) -> str:
    """Return the files with the most samples, as the end of a sentence."""
    activity = claims.trace.host_activity
    if activity is None or not activity.files:
        return ""
    named = sorted(activity.files, key=lambda file: (-activity.files[file], file))
    return f", most on {listed((name(file) for file in named), 3)}"


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        where=top_line(claims, is_not_torch),
        afterword=f"{host_time(claims, pieces, IdleCause.FILE_IO)}{with_lines(claims, pieces, is_not_torch)}",
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} while the host reads or writes files"
        f"{most_in(claims, is_not_torch)}",
        detail="Samples of the program without the profiler show the launching thread in calls on "
        f"files{_files(claims)}.",
        advice="Read and write files on another thread, or less often.\n"
        "Buffer logs and flush them every few hundred lines (logging.handlers.QueueHandler), load data in DataLoader "
        "workers, and write checkpoints on a thread from a copy in host memory.",
    )


RULE = Rule(
    id="file-io",
    severity="warning",
    check=on_claimed("file-io", _draft),
    fixes=(("less-host file-io",),),
    effort="line",
)
