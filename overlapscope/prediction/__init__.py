"""Step times of changed programs, predicted by replaying a recording's dependency graph.

- Graph: `graph` defines it. `graph_builder` builds it from a trace, on the order in `analysis.host_order` and
  `analysis.holds`, and guesses those waits that a recording doesn't state.
- Constants: `hardware` finds them in the trace, in a `calibration` and in a shipped table.
- Replay: `replay` simulates the graph, and `steps` finds the steps in the result. `base` prepares a recording in this
  way and judges whether its replay can be believed.
- Changes: `interventions` has them. `data_dependencies` finds the kernels that need a moved copy, by the shapes of
  inputs if these were recorded.
- Answers: `outcomes` replays changes and computes their savings, `predict` answers `whatif`. `result` has the
  structures, `document` the text.
- Without the profiler: `overhead` removes its cost from a graph. `plain_program` has the result's figures, after an
  analysis of its trace. `predicted_trace` makes a trace of any replay, with the host's times by `overhead.HostClock`.

Here it is decided whether a recording is replayed unasked. Most need none of these modules, or not all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlapscope.base.grouping import distinct, distinct_rows
from overlapscope.errors import UsageError
from overlapscope.trace.model import PlainSteps, Trace

if TYPE_CHECKING:
    from overlapscope.analysis import TraceAnalysis
    from overlapscope.prediction.plain_program import PlainProgram

MAX_OPS = 200_000
"""Maximum number of GPU ops to replay by default: 200,000 synthetic ops add 0.9 s to an analysis of 0.4 s.
`overlapscope whatif` replays any recording."""
_MAX_DEVICES = 16
_MAX_LANES = 256
"""Maximum number of streams and threads to replay by default. Each costs some milliseconds, however little it does."""


def is_replayed_by_default(trace: Trace) -> bool:
    """Return whether a recording is small enough, in ops and lanes, to replay it by default."""
    return len(trace.gpu_ops) <= MAX_OPS and has_few_lanes(trace)


def has_few_lanes(trace: Trace) -> bool:
    """Return whether a recording has few enough devices, streams and threads to replay it by default."""
    if len(trace.devices) > _MAX_DEVICES:
        return False
    streams = len(distinct_rows((trace.gpu_ops.device, trace.gpu_ops.stream)))
    return streams + len(distinct(trace.runtime_calls.thread)) <= _MAX_LANES


def find_program(analysis: TraceAnalysis, user_step_ns: int | None) -> PlainProgram | None:
    """Return the plain program of an analyzed recording.

    Args:
        user_step_ns: Length of its step, if the user passed it.

    Returns:
        None for a prediction, a trace without GPU activity, a recording that cannot be replayed, and a step that is
        neither timed nor passed. Also None if the recording has more devices, streams and threads than programs do
        while the user passed no step.

    Raises:
        UsageError: The user passed a step, but this recording can't be replayed, or the step is impossible.
    """
    trace = analysis.trace
    if trace.predicted_by is not None or not analysis.devices:
        return None
    if user_step_ns is None and (trace.plain_steps == PlainSteps() or not has_few_lanes(trace)):
        return None
    from overlapscope.prediction.plain_program import replay_plain

    try:
        return replay_plain(analysis, user_step_ns)
    except UsageError:
        # Nothing can be predicted from this recording, which concerns only a user who passed the step.
        if user_step_ns is not None:
            raise
        return None
