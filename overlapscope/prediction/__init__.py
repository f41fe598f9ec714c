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
"""
