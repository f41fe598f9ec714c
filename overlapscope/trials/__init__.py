"""Trying changes on the program itself: it is run as it is and with each change, plain, and its steps are timed.

`child` is what happens inside a run, `search` decides which runs there are, `result` is what came out.
"""
