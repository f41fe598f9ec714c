"""Scripts as people write them, to compare overlapscope's figures with the program without the profiler.

Each is run as a user would run it, `python SCRIPT [--steps N] [--edit NAME]...`, with the repository in PYTHONPATH. An
edit changes the script by hand as some advice says; `programs.toml` says which interventions stand for it. Scripts and
list were written before anything was recorded or predicted of them.
"""
