"""Options of this suite."""

import pytest

# For the tests of our own pytest plugin.
pytest_plugins = ["pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden reports, to be reviewed as a diff"
    )
