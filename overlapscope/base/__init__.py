"""Foundations that know nothing of traces: intervals, words, files, streams."""
