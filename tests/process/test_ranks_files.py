"""From paths, patterns and URLs to local files: in memory, by HTTP, and where there is nothing or no plugin."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from overlapscope.errors import MissingPackage, OverlapscopeError, UnreadableTrace, UsageError
from overlapscope.ranks.engine import reduce_by, reduce_each
from overlapscope.ranks.files import error_text, expand_urls, fetched, shown_url
from overlapscope.ranks.on_host import reduce_any
from overlapscope.ranks.result import Unreadable
from tests.support.file_server import file_server

DDP = Path("traces/ddp")


@pytest.fixture
def memory() -> Iterator[str]:
    """Yield the URL of a directory in fsspec's memory that holds two ranks and something else."""
    filesystem = fsspec.filesystem("memory")
    for rank in (0, 1):
        filesystem.pipe(f"/job/rank{rank}.json.gz", (DDP / f"rank{rank}.json.gz").read_bytes())
    filesystem.pipe("/job/notes.txt", b"none")
    yield "memory://job"
    filesystem.rm("/job", recursive=True)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a web server's directory, with two traces, and two ranks in a directory below."""
    folder = tmp_path_factory.mktemp("web")
    shutil.copytree(DDP, folder / "job")
    for number in (2, 10):
        shutil.copy(DDP / "rank0.json.gz", folder / f"t{number}.json.gz")
    with file_server(folder) as url:
        yield url


def names(*sources: str) -> list[str]:
    return [location.source for location in expand_urls(sources)]


def test_paths_mean_what_they_mean_elsewhere() -> None:
    assert names(str(DDP), "traces/ddp/rank1.json.gz", "traces/ddp/*0.json.gz") == [
        "traces/ddp/rank0.json.gz",
        "traces/ddp/rank1.json.gz",
    ]
    assert expand_urls(DDP)[0].path == str(Path.cwd() / "traces/ddp/rank0.json.gz")
    assert names(f"file://{Path.cwd() / DDP}")[0] == str(Path.cwd() / "traces/ddp/rank0.json.gz")


@pytest.mark.parametrize("what", ["", "/", "/*", "/rank*.json.gz", "/rank?.json.gz"])
def test_directories_and_patterns_in_memory(memory: str, what: str) -> None:
    wanted = [f"{memory}/rank{rank}.json.gz" for rank in (0, 1)]
    if what == "/*":
        wanted.insert(0, f"{memory}/notes.txt")
    assert [name.replace(":///", "://") for name in names(memory + what)] == wanted


@pytest.mark.parametrize("what", ["/job", "/job/", "/job/*", "/job/rank*.json.gz"])
def test_directories_and_patterns_on_the_web(web: str, what: str) -> None:
    assert names(web + what) == [f"{web}/job/rank{rank}.json.gz" for rank in (0, 1)]


def test_the_files_of_a_url_come_in_natural_order_and_each_once(web: str) -> None:
    assert names(web, f"{web}/t10.json.gz") == [f"{web}/t2.json.gz", f"{web}/t10.json.gz"]


def test_a_copy_has_the_name_of_its_file_and_is_gone_afterwards(memory: str, web: str) -> None:
    for location in expand_urls([f"{memory}/rank1.json.gz", f"{web}/job/rank1.json.gz"]):
        with fetched(location) as path:
            assert path.name == "rank1.json.gz"
            assert path.read_bytes() == (DDP / "rank1.json.gz").read_bytes()
        assert not path.parent.exists()


def test_a_trace_behind_a_url_is_reported_under_it(memory: str) -> None:
    (location,) = expand_urls(f"{memory}/rank1.json.gz")
    (outcome,) = reduce_each(reduce_any, [location])
    assert isinstance(outcome, tuple)
    (rank,) = outcome
    assert (rank.rank, rank.source) == (1, f"{memory}/rank1.json.gz")
    assert {finding.source for finding in rank.findings} == {rank.source}


def test_workers_read_the_web_and_name_what_is_not_there(web: str) -> None:
    job = web.replace("://", "://user:secret@") + "/job"
    reduced = list(
        reduce_each(reduce_any, expand_urls([f"{job}/rank0.json.gz?key=secret", f"{job}/rank7.json.gz"]), workers=2)
    )
    (lost,) = [rank for rank in reduced if isinstance(rank, Unreadable)]
    assert (lost.source, lost.reason) == (f"{web}/job/rank7.json.gz", "the file does not exist; check the URL.")
    (rank,) = [rank for item in reduced if not isinstance(item, Unreadable) for rank in item]
    assert (rank.rank, rank.source) == (0, f"{web}/job/rank0.json.gz")


def test_a_single_trace_that_cannot_be_fetched_is_named_as_among_several() -> None:
    (location,) = expand_urls("http://user:secret@127.0.0.1:1/rank0.json.gz")
    (outcome,) = reduce_each(reduce_any, [location])
    assert isinstance(outcome, Unreadable) and outcome.source == "http://127.0.0.1:1/rank0.json.gz"
    assert outcome.reason.startswith("could not be read in 3 tries (") and "secret" not in outcome.reason


def test_a_cluster_within_this_process_reads_its_memory(memory: str) -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        reduced = list(reduce_each(reduce_any, expand_urls(memory), scheduler=cluster.scheduler_address))
    assert sorted(rank.rank or 0 for item in reduced if isinstance(item, tuple) for rank in item) == [0, 1]


@pytest.mark.parametrize("place", ["memory", "web"])
def test_a_download_ends_at_the_limit(place: str, memory: str, web: str) -> None:
    (location,) = expand_urls({"memory": memory, "web": f"{web}/job"}[place] + "/rank0.json.gz")
    outcome = reduce_by(reduce_any, location, 100_000)
    assert isinstance(outcome, Unreadable)
    assert outcome.reason == "holds more than 100 kB; raise --max-size if the trace really is that large."


def test_a_trace_that_unpacks_to_more_than_the_limit_is_named_by_its_url(memory: str) -> None:
    (location,) = expand_urls(f"{memory}/rank0.json.gz")
    outcome = reduce_by(reduce_any, location, 1_000_000)
    assert isinstance(outcome, Unreadable) and outcome.source == f"{memory}/rank0.json.gz"
    assert outcome.reason.startswith("holds more than") and "--max-size" in outcome.reason


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("memory://nothing", UnreadableTrace, "the file or directory does not exist"),
        ("memory://nothing/*.json", UnreadableTrace, "the pattern matches no file"),
        ("nonsense://u:secret@x/y", UsageError, "nonsense://x/y: fsspec does not understand this URL"),
        ("http://u:secret@127.0.0.1:1/", UnreadableTrace, "http://127.0.0.1:1/: cannot be accessed"),
        ("http://[::1]:1/x", OverlapscopeError, "http://"),
    ],
)
def test_where_nothing_is_the_url_is_named_without_its_secrets(
    url: str, error: type[OverlapscopeError], words: str
) -> None:
    with pytest.raises(error) as caught:
        expand_urls(url)
    assert words in str(caught.value) and "secret" not in str(caught.value)


def test_a_web_directory_without_traces_says_so(web: str) -> None:
    with pytest.raises(UnreadableTrace, match="the file or directory does not exist"):
        expand_urls(f"{web}/none/")
    with pytest.raises(UnreadableTrace, match="the pattern matches no file"):
        expand_urls(f"{web}/job/*.zip")


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="the plugin is there")
def test_a_missing_plugin_is_named() -> None:
    with pytest.raises(MissingPackage, match=r"s3://b/x: fsspec lacks a plugin here .*Install s3fs to access S3"):
        expand_urls("s3://b/x")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@h/a/rank0.json.gz?sig=s#x", "https://h/a/rank0.json.gz"),
        ("https://h/a@b/c", "https://h/a@b/c"),
        ("s3://bucket/key?versionId=1", "s3://bucket/key"),
        ("s3://bucket/run?/rank*.json", "s3://bucket/run?/rank*.json"),
        ("sftp://token@h/x", "sftp://h/x"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("zip://a.json::https://u:p@h/x.zip?s=1", "zip://a.json::https://h/x.zip"),
        ("simplecache::https://u:p@h/x?y", "simplecache::https://h/x"),
    ],
)
def test_what_is_shown_of_a_url_holds_no_secret(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert error_text(OSError(f"cannot get '{url}'\nnow")) == f"OSError: cannot get '{shown}' now"
