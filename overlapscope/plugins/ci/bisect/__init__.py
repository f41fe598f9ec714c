"""Search for the commit, or the stored trace, that lost overlap.

`commits` is git, `program` a run of the program, `session` has the recordings of commits, `judge` the verdicts on them
and what to judge next, `find` puts these together, and `document` shows what was found.
"""
