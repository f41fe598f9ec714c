"""The report of one or several traces, and its parts."""
