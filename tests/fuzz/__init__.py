"""Mutated traces by the million, and an oracle that says what must hold of each (`python -m tests.fuzz --help`).

`corpus` has what is mutated, `mutators` how, `oracle` what must hold, `campaign` the processes. It needs the package
and the standard library only. A file is named by its seed: the same seed makes the same file.
"""
