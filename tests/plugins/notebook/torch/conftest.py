"""Fixtures of tests with torch."""

from tests.torch.conftest import _no_objects_of_other_tests_are_looked_through, clock, nothing_is_left_running, path

__all__ = ["_no_objects_of_other_tests_are_looked_through", "clock", "nothing_is_left_running", "path"]
