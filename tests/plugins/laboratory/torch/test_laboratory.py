"""Tests of the laboratory end to end, with a user's own experiments on the CPU."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
import pytest

from overlapscope.base.extras import how_to_install
from overlapscope.base.marks import GC_PAUSE
from overlapscope.commands import main
from overlapscope.errors import UsageError
from overlapscope.plugins.laboratory import catalog, runner
from overlapscope.plugins.laboratory.comparison import compare
from overlapscope.plugins.laboratory.experiment import WrongResults
from overlapscope.plugins.laboratory.results import Machine, Results, VariantResult, read_results
from overlapscope.reading import load
from overlapscope.render.progress import Progress
from tests.support import forked

TRACES = Path("traces")

# Each process that imports torch takes seconds for it, and each failure takes a process.
HEAD = """
import os, signal, time
from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant, WrongResults
"""

MINE = (
    HEAD
    + """
def prepare(size, how="well"):
    if how == "not prepared":
        raise ValueError("cannot be prepared\\nat all")
    if how == "exit":
        os._exit(3)
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    import torch
    matrix = torch.ones(size, size)

    def step():
        if how == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5 GiB")
        return matrix @ matrix

    def close():
        print("closed", how, flush=True)

    return Program(step, figures=lambda: {"h2d_ms": 1.5, "unknown_ms": float("nan")},
                   count_wrong=lambda: WrongResults(0, 7), close=close)

EXPERIMENT = Experiment(
    name="mine", title="My own", shows="a variant that fails takes nothing else with it",
    sizes={"small": {"size": 8}, "paper": {"size": 16}}, prepare=prepare, gpus=0, recorded_steps=2,
    variants=(
        Variant("first", {}, shows="it runs", published={"wall_ms": 1.0}, wrong_results="none"),
        *(Variant(how.replace(" ", "_"), {"how": how}, shows="it fails")
          for how in ("memory", "exit", "crash", "not prepared")),
        Variant("last", {}, shows="it runs after all that", wrong_results="some"),
    ),
    faster=(("first", "memory"),),
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main
    main(EXPERIMENT)
"""
)

QUICK = (
    HEAD
    + """
def prepare(seconds=0.0):
    with open("worker", "w") as file:
        file.write(str(os.getpid()))
    return lambda: time.sleep(seconds)

EXPERIMENT = Experiment(name="quick", title="Quick", shows="nothing", sizes={}, prepare=prepare, gpus=0,
                        variants=(Variant("only", {}, shows="nothing"), Variant("other", {}, shows="nothing")))
"""
)


def overlapscope(*args: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "overlapscope", *map(str, args)],
        cwd=cwd,
        env=os.environ | {"COLUMNS": "100"} | env,
        capture_output=True,
        text=True,
        check=False,
    )


@contextlib.contextmanager
def started(*args: str | Path, until: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Yield a run that has come to the line of stderr that begins with `until`, and the rest of its stderr."""
    command = [sys.executable, "-m", "overlapscope", *map(str, args)]
    with subprocess.Popen(command, cwd=cwd, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith(until):
                break
        yield running, running.stderr


class Silent(Progress):
    """Says nothing."""

    def phase(self, experiment: str, variant: str, phase: str) -> None:
        pass

    def finished(self, experiment: str, result: VariantResult) -> None:
        pass


def run_here(
    paths: list[Path], directory: Path, *, scale: str = "small", machine: Machine | None = None
) -> list[VariantResult]:
    """Run scenario files as the command does, on a given machine instead of a measured one."""
    machine = machine or Machine(torch="2", python="3", system="Linux")
    plan = runner.Plan(directory, scale, 0)
    return runner.run([catalog.load(path) for path in paths], plan, machine, Silent())


def scenario(directory: Path, name: str, source: str) -> Path:
    path = directory / f"{name}.py"
    path.write_text(source)
    return path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Return the directory in which `mine` ran as a script, and its output."""
    place = tmp_path_factory.mktemp("ran")
    path = scenario(place, "mine", MINE)
    return place, forked.run([path.name, "--repeat", "20"], place, unloads=False)


def variants(directory: Path, experiment: str) -> dict[str, VariantResult]:
    [match] = [result for result in read_results(directory).experiments if result.name == experiment]
    return {variant.name: variant for variant in match.variants}


# -- run ------------------------------------------------------------------------------------------


def test_variants_that_fail_are_reported_and_the_rest_go_on(
    ran: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    place, done = ran
    assert done.returncode == 1, done.stderr
    result = variants(place / "overlapscope-laboratory", "mine")
    assert {name: variant.status for name, variant in result.items()} == {
        "first": "ok",
        "memory": "failed",
        "exit": "failed",
        "crash": "failed",
        "not_prepared": "failed",
        "last": "ok",
    }
    errors = {name: variant.error or "" for name, variant in result.items()}
    assert re.fullmatch(
        r"OutOfMemoryError: CUDA out of memory. Tried to allocate 5 GiB \(mine.py:\d+ in step\)", errors["memory"]
    )
    assert errors["exit"] == "its process exited with code 3"
    assert errors["crash"].startswith("its process was killed by SIGSEGV; its last words: Fatal Python error")
    assert "mine.py" in errors["crash"] and "in prepare" in errors["crash"]
    assert re.fullmatch(r"ValueError: cannot be prepared \(mine.py:\d+ in prepare\)", errors["not_prepared"])


def test_what_a_variant_measures_is_kept(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    directory = ran[0] / "overlapscope-laboratory"
    first = variants(directory, "mine")["first"]
    assert first.wall_ms is not None and first.host_ms is not None
    assert first.wall_ms.n >= 20
    assert first.wall_ms.median >= first.host_ms.median > 0
    assert first.figures == {"h2d_ms": 1.5, "unknown_ms": None}
    assert first.wrong_results == WrongResults(0, 7)
    assert first.traces == ("mine/first.trace.json.gz",)
    trace = load(directory / first.traces[0])
    names = [trace.annotations.name(row) for row in range(len(trace.annotations))]
    assert [name for name in names if name != GC_PAUSE] == [f"ProfilerStep#{number}" for number in range(4)]
    assert trace.warm_up_steps == 2


def test_the_results_name_the_machine_and_match_their_schema(
    ran: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    [experiment] = read_results(ran[0] / "overlapscope-laboratory").experiments
    assert (experiment.scale, experiment.sizes, experiment.gpus) == ("small", {"size": 8}, 0)
    machine = experiment.machine
    assert machine.torch and machine.python and machine.cores
    content = json.loads((ran[0] / "overlapscope-laboratory" / "results.json").read_text())
    assert content["schema_version"] == 1
    assert msgspec.convert(content, Results).experiments == (experiment,)


def test_progress_and_outcomes_are_reported_on_stderr(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    done = ran[1]
    assert done.stdout == ""
    for line in ("preparing mine/first", "timing mine/first", "recording mine/first", "analyzing mine/first"):
        assert line in done.stderr
    assert re.search(r"^ok      mine/first: .* ms .*0 of 7 results wrong", done.stderr, re.MULTILINE)
    assert re.search(r"^failed  mine/crash: ", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr


def test_what_failed_variants_printed_is_kept(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    kept = (ran[0] / "overlapscope-laboratory" / "mine" / "output.txt").read_text()
    assert "torch.OutOfMemoryError" in kept and "closed memory" in kept
    assert "Segmentation fault" in kept


def test_results_merge_and_an_experiment_run_again_replaces_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fails = QUICK.replace("return lambda: time.sleep(seconds)", 'raise ValueError("before torch is imported")')
    path = scenario(tmp_path, "quick", fails)
    # An experiment that needs more GPUs than exist is skipped, and starts no process.
    other = scenario(tmp_path, "other", QUICK.replace('name="quick"', 'name="other"').replace("gpus=0", "gpus=99"))
    run_here([path, other], tmp_path / "out")
    assert [experiment.name for experiment in read_results(tmp_path / "out").experiments] == ["quick", "other"]
    scenario(tmp_path, "quick", fails.replace('Variant("other", {}, shows="nothing")', ""))
    run_here([path], tmp_path / "out", scale="paper")
    first, second = read_results(tmp_path / "out").experiments
    assert (first.name, first.scale, [variant.name for variant in first.variants]) == ("quick", "paper", ["only"])
    assert (second.name, second.scale) == ("other", "small")
    assert not list((tmp_path / "out").glob(".*"))


def test_ctrl_c_keeps_what_is_done_and_leaves_no_process(tmp_path: Path) -> None:
    path = scenario(tmp_path, "quick", QUICK.replace('Variant("other", {}', 'Variant("other", {"seconds": 600.0}'))
    with started("scenarios", "run", path, until="timing quick/other", cwd=tmp_path) as (running, stderr):
        running.send_signal(signal.SIGINT)
        rest = stderr.read()
        assert running.wait() == 130
    assert "Results are in" in rest and "Traceback" not in rest
    result = variants(tmp_path / "overlapscope-laboratory", "quick")
    assert result["only"].status == "ok"
    assert (result["other"].status, result["other"].error) == ("skipped", "not run yet")
    assert not _alive(int((tmp_path / "worker").read_text()))


def test_a_worker_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    path = scenario(tmp_path, "quick", QUICK.replace("return lambda: time.sleep(seconds)", "time.sleep(600)"))
    pid_file = tmp_path / "worker"
    with started("scenarios", "run", path, until="preparing", cwd=tmp_path) as (running, _stderr):
        while not (pid_file.exists() and pid_file.read_text()):
            assert running.poll() is None
            time.sleep(0.02)
        running.kill()
        running.wait()
    worker = int(pid_file.read_text())
    for _ in range(3000):
        if not _alive(worker):
            break
        time.sleep(0.02)
    assert not _alive(worker)


def _alive(pid: int) -> bool:
    """Return whether a process runs; zombies do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_two_processes_record_a_file_each(tmp_path: Path) -> None:
    source = """
import torch
import torch.distributed as dist

def prepare():
    dist.init_process_group("gloo")
    value = torch.ones(8)
    # One rank is slower, so that the number of iterations must be agreed upon.
    return Program(lambda: (dist.get_rank() and time.sleep(0.01), dist.all_reduce(value)),
                   close=dist.destroy_process_group)

EXPERIMENT = Experiment(name="ranks", title="Ranks", shows="one", sizes={}, prepare=prepare, gpus=0, processes=2,
                        variants=(Variant("both", {}, shows="two files"),))
"""
    [both] = run_here([scenario(tmp_path, "ranks", HEAD + source)], tmp_path / "out")
    assert both.status == "ok" and both.wall_ms is not None, both.error
    assert [load(tmp_path / "out" / trace).rank for trace in both.traces] == [0, 1]


def test_a_rank_that_fails_ends_its_variant(tmp_path: Path) -> None:
    source = """
def prepare():
    if os.environ["RANK"] == "1":
        raise RuntimeError("one is enough")
    time.sleep(600)

EXPERIMENT = Experiment(name="ranks", title="Ranks", shows="one", sizes={}, prepare=prepare, gpus=0, processes=2,
                        variants=(Variant("both", {}, shows="fails"),))
"""
    [both] = run_here([scenario(tmp_path, "failing_ranks", HEAD + source)], tmp_path / "out")
    assert both.status == "failed" and (both.error or "").startswith("rank 1: RuntimeError: one is enough")


def test_what_cannot_be_run_here_is_skipped_and_earlier_results_stay(tmp_path: Path) -> None:
    path = scenario(tmp_path, "quick", QUICK.replace("gpus=0", "gpus=99"))
    skipped = run_here([path], tmp_path / "out")
    assert {variant.error for variant in skipped} == {"it needs 99 GPUs; PyTorch sees none here"}
    assert variants(tmp_path / "out", "quick")["only"].status == "skipped"
    sized = scenario(tmp_path, "quick", QUICK.replace("sizes={}", 'sizes={"small": {}}'))
    assert {item.error for item in run_here([sized], tmp_path / "out", scale="paper")} == {
        "it has no sizes for scale paper"
    }
    assert variants(tmp_path / "out", "quick")["only"].error == "it needs 99 GPUs; PyTorch sees none here"


def test_without_any_gpu_it_says_so_in_a_sentence(tmp_path: Path) -> None:
    path = scenario(tmp_path, "quick", QUICK.replace("gpus=0", "gpus=1"))
    command: list[str | Path] = ["-m", "overlapscope", "scenarios", "run", path]
    done = forked.run(command, tmp_path, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2
    assert "PyTorch finds no CUDA device" in done.stderr
    assert not (tmp_path / "overlapscope-laboratory").exists()


def test_without_torch_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    path = scenario(tmp_path, "quick", "import torch" + QUICK)
    done = overlapscope("scenarios", "run", path, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert how_to_install("record") in done.stderr
    assert done.stderr.count("\n") == 1


# -- which ----------------------------------------------------------------------------------------


def test_the_shipped_experiments_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["scenarios", "list"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    for name in catalog.shipped():
        experiment = catalog.load(catalog.shipped()[name]).experiment
        assert experiment.name == name
        assert re.search(rf"^{name} +{experiment.gpus}  \S", out, re.MULTILINE)


def test_the_example_in_the_docs_is_an_experiment(tmp_path: Path) -> None:
    page = Path("docs/guides/laboratory.md").read_text()
    example = page[page.index('"""Does it matter') : page.index("```\n\n`prepare` returns")]
    experiment = catalog.load(scenario(tmp_path, "mask", example)).experiment
    assert [variant.name for variant in experiment.variants] == ["host", "gpu"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["copy_matrx"], "did you mean 'copy_matrix'?"),
        (["nothing.py"], "nothing.py: this file does not exist"),
        ([], "one of the arguments NAME --all is required"),
        (["copy_matrix", "--all"], "not allowed with argument"),
        (["copy_matrix", "--repeat", "none"], "'none' is not a number of iterations"),
        (["copy_matrix", "--output", "pyproject.toml"], "is not a directory"),
    ],
)
def test_wrong_usage_is_reported_in_a_sentence(
    args: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scenarios", "run", *args]) == 2
    assert expected in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1", "defines no EXPERIMENT"),
        ("def f(:", "cannot be run (SyntaxError"),
        ("import nothing_at_all", "needs the module nothing_at_all"),
        (QUICK.replace('"quick"', '"../quick"'), "'../quick' cannot name a file"),
        (QUICK.replace('Variant("other"', 'Variant("only"'), "two variants called 'only'"),
        (QUICK.replace("gpus=0", 'gpus=0, faster=(("only", "mine"),)'), "`faster` names 'mine'"),
        (QUICK.replace("sizes={}", 'sizes={"big": {}}'), "`sizes` names 'big'"),
        (
            QUICK.replace('shows="nothing")', 'shows="nothing", truth=Truth(no_findings=("pagable-copy",)))', 1),
            "the truth of only has no_findings 'pagable-copy'",
        ),
        (
            QUICK.replace('shows="nothing")', 'shows="nothing", truth=Truth(idle="host"))', 1),
            "the truth of only has idle 'host'",
        ),
    ],
)
def test_a_file_that_is_not_an_experiment_is_reported_by_name(source: str, expected: str, tmp_path: Path) -> None:
    path = scenario(tmp_path, "wrong", source)
    with pytest.raises(UsageError, match=re.escape(expected)) as caught:
        catalog.load(path)
    assert "wrong.py" in str(caught.value)


def test_two_experiments_of_one_name_are_refused(tmp_path: Path) -> None:
    entries = [catalog.load(scenario(tmp_path, name, QUICK)) for name in ("quick_one", "quick_two")]
    with pytest.raises(UsageError, match="both define 'quick'"):
        catalog.check_distinct(entries)


@pytest.mark.parametrize(
    ("content", "expected"),
    [("{", "not results"), ("[]", "not results"), ('{"schema_version": 99}', "version 99"), ("\xff", "not results")],
)
def test_a_results_file_that_cannot_be_used_is_reported_before_the_work(
    content: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.json").write_text(content, encoding="latin-1")
    assert main(["scenarios", "run", "copy_matrix", "--output", str(tmp_path)]) == 2
    assert expected in capsys.readouterr().err


def test_a_report_of_a_run_on_the_cpu(ran: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    done = overlapscope("scenarios", "report", cwd=ran[0])
    assert done.returncode == 0, done.stderr
    text = " ".join((ran[0] / "overlapscope-laboratory" / "report.md").read_text().replace("\\", "").split())
    assert "first is faster than memory: memory failed" in text
    assert "mine/crash failed: its process was killed by SIGSEGV" in text
    assert "first computes no wrong result: 0 of 7 were wrong" in text
    assert "last can compute wrong results: 0 of 7 were wrong" in text
    assert "on the CPU" in text
    assert "memory" in done.stdout and (ran[0] / "overlapscope-laboratory" / "report.html").exists()


# -- on a GPU -------------------------------------------------------------------------------------

ON_GPU = (
    HEAD
    + """
import torch

def prepare(megabytes, pinned):
    source = torch.ones(megabytes << 18, pin_memory=pinned)
    return lambda: source.to("cuda", non_blocking=True)

EXPERIMENT = Experiment(
    name="pinned", title="Pinned or pageable", shows="a copy from pinned memory is faster",
    sizes={"small": {"megabytes": 64}}, prepare=prepare,
    variants=(
        Variant("pageable", {"pinned": False}, shows="slow", truth=Truth(findings=("pageable-memory",))),
        Variant("memory", {"megabytes": 1 << 30, "pinned": False}, shows="fails"),
        Variant("pinned", {"pinned": True}, shows="fast", truth=Truth(no_findings=("pageable-memory",))),
    ),
    faster=(("pinned", "pageable"),),
)
"""
)


@pytest.mark.gpu
def test_an_experiment_on_a_gpu_is_measured_recorded_and_judged(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    done = overlapscope("scenarios", "run", scenario(tmp_path, "pinned", ON_GPU), "--output", "out", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    results = read_results(tmp_path / "out")
    [comparison] = compare(results)
    machine = comparison.result.machine
    link = machine.link
    assert machine.gpus and machine.driver and machine.cuda and machine.gpu_memory_bytes
    assert link.h2d_gb_per_s and link.d2h_gb_per_s and link.both_gb_per_s
    assert link.both_gb_per_s > max(link.h2d_gb_per_s, link.d2h_gb_per_s)
    assert [variant.status for variant in comparison.result.variants] == ["ok", "failed", "ok"]
    assert all(claim.holds for claim in comparison.claims), comparison.claims
    [analysis] = comparison.result.variants[2].analyses
    assert analysis.steps == 3 and analysis.copies[0].source_kind == "pinned"
    assert overlapscope("scenarios", "report", "--results", "out", cwd=tmp_path).returncode == 0
