"""Step times of changed programs, predicted by replaying a recording's dependency graph.

- Graph: `graph` defines it. `graph_builder` builds it from a trace, on the order in `analysis.host_order` and
  `analysis.holds`; `guesses` has those that a recording doesn't state.
- Constants: `hardware` chooses them from `calibration`, from `observed_hardware` and from a shipped table.
- Replay: `replay` simulates the graph, with `copy_engines`, and `steps` finds the steps in the result. `base` prepares
  a recording in this way and judges whether its replay can be believed.
- Changes: `interventions` has one module each. `data_dependencies` finds the kernels that need a moved copy, by the
  `shapes` of inputs if these were recorded.
- Answers: `predict` applies changes, `gains` tries sets of them, `noise` widens intervals. `result` has the structures,
  `document` the text.
- By default: `unasked` tells which recordings are small enough to be replayed.
- Without the profiler: `overhead` removes its cost from a graph. `plain_program` has the result's figures, after an
  analysis of its trace. `predicted_trace` makes a trace of any replay, with the host's times by `host_clock`.
"""
