"""Options of this suite."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest
from hypothesis import settings

import overlapscope
from tests.support.session import session

pytest.register_assert_rewrite("tests.support.as_alone")
from tests.support import scheduler  # noqa: E402

# On a busy machine, an example may take any time. CI and `make check` ask for the thorough profile.
settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("thorough", deadline=None, max_examples=30)
settings.load_profile("quick")

# Containers often keep Python from writing bytecode. Here, hundreds of processes would compile the package again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# On the few cores of a test machine, threads of torch and of numpy only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# jsonschema would compile its 40 grammars of addresses, for a format that none of our schemas has.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# Behind `nohup` and `&` these are ignored, by every program that a test starts, too.
for _signal, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(_signal, _handler)

# For the tests of our own pytest plugin.
pytest_plugins = ["pytester"]


@pytest.fixture(scope="session", autouse=True)
def _a_cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, nor a program that one starts, uses the cache or the history of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OVERLAPSCOPE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OVERLAPSCOPE_HISTORY", str(tmp_path_factory.mktemp("history") / "history.sqlite"))
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Share the bundled recordings, and all results of them, between the tests of a process."""
    shared = ExitStack()
    shared.enter_context(session(Path(__file__).parents[1] / "traces", Path(overlapscope.__file__).parent / "samples"))
    config.add_cleanup(shared.close)


@pytest.fixture(autouse=True)
def _recordings_afresh(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test that is marked `afresh` without anything that others have read."""
    with session() if request.node.get_closest_marker("afresh") else nullcontext():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep tests and the modules that they import out of garbage collection, since they stay to the end. Searching them
    takes a third of the time to collect tests, and more in every test that allocates much."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that don't wait last: their files are short, so that workers end together. Of a file's tests with a
    browser, run those on one address after each other: a page at another address loads all scripts anew."""
    files = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}

    def place(item: pytest.Item) -> tuple[bool, int, list[bool]]:
        fixtures = item.fixturenames if isinstance(item, pytest.Function) else ()
        waits = scheduler.is_waiting(item.nodeid)
        return not waits, files[item.path], [name in fixtures for name in ("own_page", "serve_traces")]

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of workers for `-n auto`."""
    return scheduler.workers_for(config.args)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """Schedule files by the rooms they are in, unless another order was asked for."""
    return scheduler.RoomScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden reports, to be reviewed as a diff"
    )
