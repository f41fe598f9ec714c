"""Options of this suite."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# How long an example takes says nothing on a busy machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Behind `nohup` and `&` these are ignored, by every program that a test starts, too.
for _one, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_one) is signal.SIG_IGN:
        signal.signal(_one, _usual)

# For the tests of our own pytest plugin.
pytest_plugins = ["pytester"]


@pytest.fixture(scope="session", autouse=True)
def _a_cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, nor a program that one starts, uses the cache of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAPSCOPE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden reports, to be reviewed as a diff"
    )
