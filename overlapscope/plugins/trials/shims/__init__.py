"""The changes of `changes.CHANGES`, made to torch in a running program.

A shim wraps functions of torch while it is active. If it does not fit, the program continues unchanged, and a note has
the reason.
"""
