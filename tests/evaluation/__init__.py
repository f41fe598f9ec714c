"""Tests that hold what the pages say against whole sets of recordings."""
