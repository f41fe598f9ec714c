"""The ranks of a job, read by real clusters: processes of our own, and schedulers and workers that others started."""

from __future__ import annotations

import gzip
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from benchmarks.ranks_job import SyntheticJob
from overlapscope.base.extras import how_to_install
from overlapscope.base.saved import encode
from overlapscope.commands import main
from overlapscope.errors import ClusterFailed
from overlapscope.ranks.engine import connected, reduce_by, reduce_each
from overlapscope.ranks.files import Location, expand_urls
from overlapscope.ranks.join import report_on
from overlapscope.ranks.on_host import reduce_any
from overlapscope.ranks.parts import from_json
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.result import RanksReport, Unreadable
from overlapscope.reading import LIMIT_BYTES
from overlapscope.trace.model import Trace
from tests.support.dask_processes import PATIENCE_S, Scheduler, scheduler, wait_until

DDP = Path("traces/ddp")
Outcome = tuple[ReducedRank, ...] | Unreadable
reduce_all = partial(reduce_each, reduce_any)
RANKS = 6


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    SyntheticJob(RANKS).write(folder)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    """Yield a scheduler whose only worker has little memory and runs in a different directory from this process."""
    with (
        scheduler(tmp_path_factory.mktemp("cluster"), allowed_failures=0) as started,
        started.worker("--memory-limit", "220MB"),
    ):
        yield started


def joined(outcomes: Iterable[Outcome]) -> RanksReport:
    return report_on(
        item for outcome in outcomes for item in ((outcome,) if isinstance(outcome, Unreadable) else outcome)
    )


def in_this_process(locations: Iterable[Location]) -> RanksReport:
    return joined(reduce_by(reduce_any, location, LIMIT_BYTES) for location in locations)


def numbers(outcomes: Iterable[Outcome]) -> list[int]:
    ranks = [rank for outcome in outcomes if not isinstance(outcome, Unreadable) for rank in outcome]
    return sorted(rank.rank for rank in ranks if rank.rank is not None)


def unreadable(outcomes: Iterable[Outcome]) -> list[Unreadable]:
    return [outcome for outcome in outcomes if isinstance(outcome, Unreadable)]


def readers() -> list[psutil.Process]:
    """Return the processes that read traces for this one."""
    outcomes = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "--multiprocessing-fork" in child.cmdline():
                outcomes.append(child)
        except psutil.Error:
            continue
    return outcomes


def deadly(folder: Path, megabytes: int) -> Path:
    """Return a small file whose names take this much memory."""
    filler = gzip.compress(b"x" * 250_000)
    event = '{"ph": "X", "cat": "kernel", "ts": %d, "dur": 1, "pid": 0, "tid": 7, "args": {"stream": 7}, "name": "%d'
    events = [gzip.compress((event % (number, number)).encode(), 1) + filler for number in range(4 * megabytes)]
    between = gzip.compress(b'"},')
    path = folder / "deadly_rank9.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [') + between.join(events) + gzip.compress(b'"}]}'))
    return path


# Processes of our own


def test_processes_report_what_one_process_would_and_name_what_cannot_be_read(job: Path, tmp_path: Path) -> None:
    shutil.copytree(job, tmp_path, dirs_exist_ok=True)
    whole = (tmp_path / "rank2.json.gz").read_bytes()
    (tmp_path / "rank2.json.gz").write_bytes(b"no JSON" + whole)
    (tmp_path / "rank3.json.gz").write_bytes(b"")
    locations = expand_urls(tmp_path)
    report = joined(reduce_all(locations, workers=2))
    assert encode(report) == encode(in_this_process(locations))
    assert [row.rank for row in report.ranks] == [0, 1, 4, 5]
    assert [(failure.rank, failure.source) for failure in report.unreadable] == [
        (rank, str(tmp_path / f"rank{rank}.json.gz")) for rank in (2, 3)
    ]
    assert report.unreadable[1].reason == "the file is empty; record the trace again."
    assert report.missing == ()
    assert not readers()


def test_killed_processes_lose_nothing(job: Path) -> None:
    outcomes = reduce_all(expand_urls(job), workers=2)
    read = [next(outcomes)]
    killed = readers()
    for process in killed:
        process.kill()
    read += outcomes
    assert len(killed) == 2
    assert numbers(read) == list(range(RANKS))
    assert not readers()


def test_results_that_are_lost_with_their_processes_are_worked_out_again(job: Path) -> None:
    def worked() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in readers())

    def idle() -> bool:
        before = worked()
        time.sleep(0.5)
        return worked() - before < 0.1

    outcomes = reduce_all(expand_urls(job), workers=2)
    read = [next(outcomes)]
    wait_until(idle, "all files in hand are read")
    for process in readers():
        process.kill()
    read += outcomes
    assert numbers(read) == list(range(RANKS))


def test_a_process_that_dies_while_it_starts_is_started_again(job: Path) -> None:
    killed: list[psutil.Process] = []

    def kill_the_first() -> None:
        wait_until(readers, "a process is there")
        killed.append(readers()[0])
        killed[0].kill()

    thread = threading.Thread(target=kill_the_first)
    thread.start()
    reduced = list(reduce_all(expand_urls(job), workers=2))
    thread.join()
    assert killed and numbers(reduced) == list(range(RANKS))


def without_the_first_four(trace: Trace) -> tuple[ReducedRank, ...]:
    """Reduce a trace, unless it is of one of the first four ranks, which kill the process."""
    if trace.rank is not None and trace.rank < 4:
        os._exit(1)
    return reduce_any(trace)


def test_traces_that_their_processes_die_of_are_given_up_and_the_rest_go_on(job: Path) -> None:
    outcomes = list(reduce_each(without_the_first_four, expand_urls(job), workers=2))
    assert numbers(outcomes) == [4, 5]
    given_up = unreadable(outcomes)
    assert sorted(each.source for each in given_up) == [str(job / f"rank{rank}.json.gz") for rank in range(4)]
    assert all("died" in each.reason and "more memory" in each.reason for each in given_up)


def test_a_trace_that_needs_more_than_its_share_of_the_memory_is_read_alone(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("overlapscope.ranks.processes.free_bytes", lambda: 250 << 20)
    outcomes = list(reduce_all(expand_urls([deadly(tmp_path, 130), job]), workers=2, limit_bytes=1 << 40))
    assert numbers(outcomes) == [*range(RANKS), 9]
    assert not unreadable(outcomes)
    assert capfd.readouterr() == ("", "")


class DeadlyReduction:
    """A function that kills the process that receives it."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (1,)

    def __call__(self, trace: Trace) -> None:
        raise AssertionError


def test_processes_that_die_as_they_start_are_an_error(job: Path) -> None:
    with pytest.raises(ClusterFailed, match="as soon as they start; the most likely reason is a memory limit"):
        list(reduce_each(DeadlyReduction(), expand_urls(job), workers=2))


def read_all(job: Path) -> None:
    assert numbers(reduce_all(expand_urls(job))) == list(range(RANKS))


def test_a_daemonic_process_which_can_start_no_others_reads_by_itself(job: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=read_all, args=(job,), daemon=True)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_an_interrupt_ends_it_quietly(job: Path) -> None:
    command = [sys.executable, "-m", "overlapscope", "ranks", "--workers", "2", str(job)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        started = psutil.Process(process.pid)
        wait_until(lambda: len(started.children(recursive=True)) >= 3, "its processes are there")
        others = started.children(recursive=True)
        # As a terminal does: to all of them.
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, *output) == (130, b"", b"")
    assert not psutil.wait_procs(others, timeout=PATIENCE_S)[1]


def test_a_script_that_reads_traces_is_run_once(job: Path, tmp_path: Path) -> None:
    script = f"print('once'); from overlapscope.commands import main; main(['ranks', {str(job)!r}, '--workers', '2'])"
    (tmp_path / "script.py").write_text(script)
    for arguments in (["-"], [str(tmp_path / "script.py")]):
        done = subprocess.run([sys.executable, *arguments], input=script, capture_output=True, text=True, check=True)
        assert (done.stdout.count("once"), done.stderr) == (1, "")


def test_a_single_trace_needs_no_other_process() -> None:
    (location,) = expand_urls(DDP / "rank0.json.gz")
    (outcome,) = reduce_all([location])
    assert isinstance(outcome, tuple) and outcome[0].source == str(DDP / "rank0.json.gz")


# Clusters of others


def test_a_cluster_that_is_there_reports_the_same(
    cluster: Scheduler, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["ranks", str(DDP), "--scheduler", cluster.address, "--format", "json"]) == 0
    output, errors = capfdbinary.readouterr()
    assert from_json(output) == in_this_process(expand_urls(DDP))
    assert errors == b""


def test_what_workers_cannot_see_is_named_with_where_it_was_looked_for(cluster: Scheduler, tmp_path: Path) -> None:
    here = expand_urls(DDP)
    reduced = list(reduce_all([*here, Location("r.json", str(tmp_path / "r.json"))], scheduler=cluster.address))
    assert numbers(reduced) == [0, 1]
    (lost,) = unreadable(reduced)
    assert lost.source == "r.json" and "where every worker can see it" in lost.reason


def test_a_trace_that_workers_die_of_is_given_up_and_the_rest_go_on(cluster: Scheduler, tmp_path: Path) -> None:
    locations = expand_urls([deadly(tmp_path, 250), DDP])
    reduced = list(reduce_all(locations, scheduler=cluster.address, limit_bytes=1 << 40))
    assert numbers(reduced) == [0, 1]
    (given_up,) = unreadable(reduced)
    assert given_up.source == locations[0].source
    assert "died" in given_up.reason and "workers with more memory" in given_up.reason


def test_a_worker_without_this_package_is_named(cluster: Scheduler) -> None:
    from distributed import Client

    with Client(cluster.address, set_as_default=False) as client, cluster.worker("--no-nanny", overlapscope=False):
        client.wait_for_workers(2, timeout=PATIENCE_S)
        with pytest.raises(ClusterFailed, match="has no overlapscope; install overlapscope"):
            list(reduce_all(expand_urls(DDP), scheduler=cluster.address))


def test_a_lost_scheduler_is_an_error_and_not_a_report(job: Path, tmp_path: Path) -> None:
    with scheduler(tmp_path) as started, started.worker("--no-nanny"):
        outcomes = reduce_all(expand_urls(job), scheduler=started.address)
        next(outcomes)
        started.process.kill()
        with pytest.raises(ClusterFailed, match=f"{started.address}: the connection to the scheduler was lost"):
            list(outcomes)


@pytest.mark.parametrize("address", ["nonsense", "nonsense://127.0.0.1:8786"])
def test_where_no_scheduler_is_the_address_is_named(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranks", str(DDP), "--scheduler", address]) == 2
    output, errors = capsys.readouterr()
    assert output == "" and errors.startswith(f"overlapscope: error: {address}: no Dask scheduler answers there")
    assert errors.count("\n") == 1


def test_an_address_that_cannot_be_one_starts_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ClusterFailed, match="unknown address scheme"), connected("nonsense://127.0.0.1:8786"):
        pass
    assert set(threading.enumerate()) == before


def test_a_machine_too_busy_to_start_dask_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(runner: object) -> None:
        # As Dask does if its thread has not begun after 10 s.
        raise AssertionError

    monkeypatch.setattr("distributed.utils.LoopRunner.start", start)
    with pytest.raises(ClusterFailed, match="too busy; try again"):
        list(reduce_all(expand_urls(DDP), scheduler="tcp://127.0.0.1:1"))


# The command


def test_the_command_writes_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("text", "markdown", "html"):
        file = tmp_path / name
        assert main(["ranks", str(DDP / "rank0.json.gz"), "--format", name, "--expect", "2", "-o", str(file)]) == 0
        assert "1 rank" in file.read_text()
    assert capsys.readouterr().out == ""


def _with_a_terminal(command: list[str]) -> tuple[bytes, bytes]:
    """Return what a command writes to stdout, and to the terminal that is its stderr. It must succeed."""
    terminal, theirs = os.openpty()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env=os.environ | {"TERM": "xterm"}
    ) as process:
        os.close(theirs)
        output, _ = process.communicate(timeout=PATIENCE_S)
    shown = os.read(terminal, 1 << 16)
    os.close(terminal)
    assert process.returncode == 0
    return output, shown


def test_a_terminal_shows_how_many_traces_are_done() -> None:
    output, shown = _with_a_terminal(
        [sys.executable, "-m", "overlapscope", "ranks", str(DDP / "rank0.json.gz"), "--format", "json"]
    )
    assert b"1/1" in shown
    assert [row.rank for row in from_json(output).ranks] == [0]


def test_ranks_that_were_expected_are_missing(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["ranks", str(DDP / "rank1.json.gz"), "--expect", "4", "--format", "json"]) == 0
    report = from_json(capfdbinary.readouterr().out)
    assert (report.expected, report.missing) == (4, (0, 2, 3))


def test_a_report_that_lies_beside_the_traces_is_none_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json.gz").symlink_to((DDP / f"rank{rank}.json.gz").absolute())
    assert main(["ranks", str(tmp_path / "rank0.json.gz"), "--format", "json", "-o", str(tmp_path / "ranks.json")]) == 0
    assert [Path(address.source).name for address in expand_urls(tmp_path)] == ["rank0.json.gz", "rank1.json.gz"]
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json.gz").unlink()
    assert main(["ranks", str(tmp_path)]) == 2
    assert "this directory has a report of ranks, but no trace" in capsys.readouterr().err


def test_a_report_of_ranks_is_not_taken_for_one_of_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = str(tmp_path / "ranks.json")
    assert main(["ranks", str(DDP / "rank0.json.gz"), "--format", "json", "-o", report]) == 0
    for command in (["diff", report, report], ["check", report, "--forbid", "pageable-memory"]):
        assert main(command) == 2
        assert f"{report}: is a report of ranks" in capsys.readouterr().err


def test_nothing_readable_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank0.json").write_text("{}")
    assert main(["ranks", str(tmp_path)]) == 2
    output, errors = capsys.readouterr()
    assert output == "" and errors.startswith("overlapscope: error: 1 trace could not be read; ")


@pytest.mark.parametrize(
    "options", [["--workers", "0"], ["--expect", "-1"], ["--workers", "2", "--scheduler", "tcp://127.0.0.1:1"]]
)
def test_options_that_make_no_sense_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranks", str(DDP), *options]) == 2
    assert capsys.readouterr().err


def without_dask(*args: str) -> subprocess.CompletedProcess[str]:
    """`overlapscope ranks` in a process that has neither Dask nor fsspec."""
    code = (
        "import sys; sys.modules |= dict.fromkeys(['distributed', 'fsspec', 'fsspec.core']); "
        "from overlapscope.commands import main; sys.exit(main())"
    )
    return subprocess.run([sys.executable, "-c", code, "ranks", *args], capture_output=True, text=True, check=False)


def test_several_processes_need_no_dask(job: Path) -> None:
    done = without_dask(str(job), "--workers", "2", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.encode().rstrip() == encode(in_this_process(expand_urls(job))).rstrip()


@pytest.mark.parametrize("options", [[str(DDP), "--scheduler", "tcp://127.0.0.1:1"], ["memory://job"]])
def test_without_dask_or_fsspec_the_extra_is_named(options: list[str]) -> None:
    done = without_dask(*options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert how_to_install("cluster") in done.stderr


def test_a_terminal_shows_what_analyze_does_with_many_traces_and_nothing_else_does(tmp_path: Path) -> None:
    for number in range(9):
        shutil.copy(DDP / "rank0.json.gz", tmp_path / f"rank{number}.json.gz")
    command = [sys.executable, "-m", "overlapscope", "analyze", str(tmp_path), "--format", "json"]
    output, shown = _with_a_terminal(command)
    assert b"looking for savings in 9 traces" in shown
    quiet = subprocess.run(command, capture_output=True, check=True)
    assert (quiet.stdout, quiet.stderr) == (output, b"")
