"""Ranks of a job: each reduced where its file is, then joined into one report.

- Reading: `files` finds the traces, and `engine` reduces them, on `clusters` of processes. `reduced` has the data of a
  rank that is kept, `on_host` makes it without a GPU.
- Comparing: `collectives` matches kernels of different ranks, `clocks` estimates offsets from their ends, and `waits`
  measures who waited for whom. `comparison` calls these in order.
- Reporting: `join` makes the report, whose structures are in `result`: `stragglers` and `groups` have what follows from
  waits, `summary` the rest.
- Showing: `frame` has the figures that people read, of an average step. `document` puts it together from `verdict`,
  `tables`, `charts` and `metrics`.
"""
