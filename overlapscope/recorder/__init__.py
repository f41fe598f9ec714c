"""Recording a running program into a trace file. Nothing here imports torch before a recording begins.

- Interface: `recording` has `overlapscope.record` and `overlapscope.step`, `options` its arguments, `destination` the
  names of files. `program` records a whole program, which `script` or `notebook` runs, and `children` the processes
  that it starts.
- Threads: `driver` calls the recorder on one thread, and `main_thread` interrupts that. `triggers` opens windows by the
  clock or a range of the program.
- Decisions: `recorder` and `recorder_state` follow the `schedule`, and say which session is written.
- Profiler: `session` is a run of it, helped by `all_threads`, `cupti`, `event_notes`, `gc_callback`, `gc_marks`,
  `memory_guard` and `open_ranges`. `program_profilers` handles the program's own.
- Steps: `step_marks` says which marks end steps. Without marks, `automatic_steps` finds steps: `step_sources` reports
  calls, and `step_choice` chooses among them. `step_times` times steps, and `pace` clocks all of them. `program_steps`
  counts them in a program that is watched rather than recorded, by `optimizer_steps`.
- Host: `sampling` takes stacks and facts of the host in steps after the recording.
- Files: `trace_file` writes them, with the facts of `metadata`, and `claims` locks them.
- Inside a program: `torch_import` notices its import of torch, `devices` answers questions on GPUs, and `wrapping`
  replaces functions. `at_start` reaches processes that start, `at_import` those that import torch, `callbacks` trainers
  of Lightning and Transformers. `own_modules` keeps the program's modules apart from the library's.
"""
