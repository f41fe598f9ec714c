"""Ranks of a job: each reduced where its file is, then joined into one report.

- Reading: `files` finds the traces, and `engine` reduces them, on `clusters` of processes. `reduced` has the data of a
  rank that is kept, with its judged steps, its `kernels` of communication, their `messages` and the sizes of
  `exchanges`; `on_host` makes it without a GPU, from `host_collectives` and `host_causes`.
- Comparing: `collectives` matches kernels of different ranks, `clocks` estimates offsets from their ends, and `waits`
  measures who waited for whom, in `common_steps`. `pairs` and `message_clocks` do that for sends and receives.
  `comparison` calls these in order.
- Reporting: `join` makes the report, whose structures are in `result` and `comm_result`: `stragglers`, `groups` and
  `comm_causes` have what follows from waits, `summary` the rest. `dimensions` sums up groups along the `mesh`, in the
  ranks' `windows`, and compares the `transfers` of groups alike. `parts` are what plugins add.
- Showing: `frame` has the figures that people read, of an average step. `document` puts it together from `verdict`,
  `tables`, `mesh_words`, `group_names`, `group_table`, `charts` and `metrics`.
"""
