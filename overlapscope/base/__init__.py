"""What every room builds on and nothing of a trace: intervals, words, files, streams."""
