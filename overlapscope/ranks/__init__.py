"""Ranks of a job: each reduced where its file is, then joined into one report.

- Reading: `files` finds the traces, and `engine` reduces them, in `processes` of this machine or on a cluster.
  `reduced` has the data of a rank that is kept, with its judged steps, its kernels of communication and their
  `messages`; `on_host` makes it without a GPU.
- Comparing: `collectives` matches kernels of different ranks, `clocks` estimates offsets from their ends, and `waits`
  measures who waited for whom, in steps that all ranks have. `pairs` does that for sends and receives. `comparison`
  calls these in order.
- Reporting: `join` makes the report, whose structures are in `result` and `comm_result`: `communication` has groups,
  causes and dimensions of the `mesh`, `summary` stragglers and the rest. `parts` are what plugins add.
- Showing: `document` has the tables, and puts it together from `verdict`, `comm_words` and `charts`.
"""
