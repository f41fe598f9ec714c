"""Tests of the package as its users get it."""
