"""A running program -> a trace file: phases, steps, the profiler underneath, and what else is noted while it runs.

`overlapscope.record` is `recording.Recording`, `overlapscope.step` is `recording.step`. Nothing here imports torch
before a recording begins.
"""
