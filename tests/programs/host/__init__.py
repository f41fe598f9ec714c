"""Training programs in which one known cause on the host keeps the GPU waiting, and some in which nothing does.

`python SCRIPT [--device cpu] [--steps N] [--seconds S] [--blocks N]`, with the repository in PYTHONPATH. After the
steps in which it is recorded, a script runs blocks of steps in turn with and without the cause. It times them, and the
planted part. `programs.toml` states the cause of each. Its lines end in the comment `planted`. Causes and lines were
stated before anything was recorded.
"""
