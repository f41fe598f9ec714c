"""Trials of changes on a running program: it runs unchanged and with each change, without a profiler, and its steps are
timed.

`child` sets up a run, `search` decides which runs to make, `conduct` makes them, `result` holds the findings, and
`edit` puts changes into the source. `in_code` does all of this with a function of the current process.
"""
