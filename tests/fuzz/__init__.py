"""Mutated traces by the million, and an oracle that says what must hold of each (`python -m tests.fuzz --help`).

`corpus` has the files to mutate, `mutators` the mutations, `oracle` the properties that must hold, and `campaign` the
processes. It needs the package and the standard library only. A file is named by its seed: the same seed makes the
same file.
"""
