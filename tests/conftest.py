"""Options of this suite."""

import pytest
from hypothesis import settings

# How long an example takes says nothing on a busy machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# For the tests of our own pytest plugin.
pytest_plugins = ["pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden reports, to be reviewed as a diff"
    )
