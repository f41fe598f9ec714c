"""Scripts as people write them, for `overlapscope try`; `by_hand` has each of them as a person edits it.

Each is run as a user would run it, `python SCRIPT [OPTIONS]`, with the repository in PYTHONPATH. With `--time 20 100`
it says how long a step takes without overlapscope: the mean of 100 behind 20. Without a GPU everything is small.
Scripts, edits and their list (`programs.toml`) were written before anything was tried on them;
`benchmarks/trials_page.md` says what was changed since.
"""
