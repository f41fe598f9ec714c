"""Ranks of a job: each reduced where its file is, then joined into one report."""
