"""Recording a running program into a trace file: phases, steps, the profiler, and notes beside it.

`overlapscope.record` is `recording.record`, `overlapscope.step` is `recording.step`. Nothing here imports torch before
a recording begins.
"""
