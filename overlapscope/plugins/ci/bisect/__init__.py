"""Search for the commit, or the stored trace, that lost overlap.

`commits` is git, `program` a run of the program, and `judge` the verdicts on commits and what to judge next. `find` has
the recordings of commits and puts these together, and `document` shows what was found.
"""
