"""Training programs in which one known cause on the host keeps the GPU waiting, and some in which nothing does.

`python SCRIPT [--fixed] [--device cpu] [--steps N] [--seconds S]`, with the repository in PYTHONPATH; `--fixed` leaves
the cause out. `programs.toml` states the cause of each. Its lines end in the comment `planted`, and the program itself
measures how long they take. Causes and lines were stated before anything was recorded.
"""
