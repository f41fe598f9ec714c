"""Replays of all ranks of a job, joined where they meet: what a change brings the job.

`summary` reduces each rank's graph where its file is by `condense`. `join` has the
structures that are sent, and ties the networks of all ranks together. `changes` and `buckets` have changes
of a whole job, and `predict` makes the `result`.
"""
