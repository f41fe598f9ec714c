"""Tests that compare the pages of docs/evaluation with whole sets of recordings."""
