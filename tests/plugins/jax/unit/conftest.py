"""These tests start no process and load no torch."""

from tests.core.conftest import garbage_is_looked_for_seldom, no_process, no_torch

__all__ = ["garbage_is_looked_for_seldom", "no_process", "no_torch"]
