"""Tests that start no process and need neither torch nor a browser nor the wheel."""
