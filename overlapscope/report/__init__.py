"""The Report of one or several traces, and what it consists of."""
