"""Ranks of a job: each reduced where its file is, then joined into one report.

- Reading: `files` finds the traces, and `engine` reduces them, on `clusters` of processes. `reduced` has the data of a
  rank that is kept, with its judged steps, its `kernels` of communication, their `messages` and the sizes of
  `exchanges`; `on_host` makes it without a GPU, from `host_collectives` and `host_causes`.
- Comparing: `collectives` matches kernels of different ranks, `clocks` estimates offsets from their ends, and `waits`
  measures who waited for whom, in `common_steps`. `pairs` and `message_clocks` do that for sends and receives.
  `comparison` calls these in order.
- Reporting: `join` makes the report, whose structures are in `result`, `comm_result` and `pipeline_result`:
  `stragglers`, `groups`, `experts` and `comm_causes` have what follows from waits, `pipelines` what follows from
  messages by `schedules`, `summary` the rest. `dimensions` sums up groups along the `mesh`, in the ranks' `windows`,
  and compares the `transfers` of groups alike.
- Showing: `frame` has the figures that people read, of an average step. `document` puts it together from `verdict`,
  `tables`, `pipeline_words`, `mesh_words`, `group_names`, `group_table`, `expert_table`, `charts` and `metrics`.
"""
