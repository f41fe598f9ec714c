"""Samples and facts of the host in steps after the recording, for `Trace.host_activity`.

`host_sampler` conducts them, and limits their number and size. It starts a process that runs py-spy and reads the state
of the thread that marks the steps: `outside_script`, which recognizes waits for the GIL by its address. `facts` has the
counters of the system and of the garbage collector.
"""
