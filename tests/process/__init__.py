"""Tests that start processes: the command line as a user starts it, readers and ranks in parallel, servers."""
