"""Trying changes on the program itself: it is run as it is and with each change, plain, and its steps are timed.

`child` is what happens inside a run, `search` decides which runs there are, `conduct` makes them, `result` is what came
out, `edit` how a person does the same. `in_code` does it all to a function of this process.
"""
