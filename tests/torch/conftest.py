"""What all tests with torch share."""

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _no_objects_of_other_tests_are_looked_through() -> None:
    """A recording looks through all objects of its process for open ranges, and before long those of other rooms are
    millions: a second for each look."""
    gc.collect()
    gc.freeze()
