"""Recording a running program into a trace file. Nothing here imports torch before a recording begins.

- Interface: `recording` has `overlapscope.record` and `overlapscope.step`, `options` its arguments and schedule,
  `destination` the names of files. `program` records a whole program, which `script` runs, and the processes that it
  starts.
- Threads: `driver` calls the recorder on one thread, at steps and by a clock, and `main_thread` interrupts that.
- Decisions: `recorder` follows the schedule by the table of `states`, and chooses and writes a session.
- Profiler: `session` is a run of it, helped by `all_threads`, `cupti`, `marks` and `memory_guard`. `program_profilers`
  handles the program's own.
- Steps: `driver` says which marks end steps. Without marks, `automatic_steps` finds steps: `step_sources` reports
  calls, `step_choice` chooses among them. `step_times` times steps.
- Host: `sampling` takes stacks and facts of the host in steps after the recording.
- Files: `trace_file` writes and amends one, and `destination` locks them.
- Inside a program: `imports` notices its import of torch, and keeps its modules apart from the library's. `devices`
  answers questions on GPUs, `wrapping` replaces functions, and `program_lines` tells the program's lines from a
  library's. torch calls `at_import` in each process.
"""
