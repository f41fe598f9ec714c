"""The package as its users get it: a wheel in an empty environment, and what an import costs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from overlapscope.commands import commands, groups

ROOT = Path(__file__).parents[2]
OPTIONAL = ("torch", "tensordict", "dash", "hta", "dask", "distributed", "fsspec")


def run(command: Sequence[str | Path], cwd: Path) -> str:
    """Return the output of a command that must succeed, with nothing of the checkout in its environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE"))}
    done = subprocess.run(
        command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, built from this checkout."""
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, ROOT], cwd=out)
    (built,) = out.glob("overlapscope-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the `bin` directory of an environment that has only the wheel and its dependencies."""
    environment = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", "--without-pip", environment], cwd=environment)
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python"]
    # Modules are compiled when they are imported; most never are.
    pins = ("--constraint", ROOT / "requirements" / "ci.txt")
    run([*pip, "install", "--quiet", "--no-compile", *pins, wheel], cwd=environment)
    return environment / "bin"


@pytest.fixture(scope="module")
def samples(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of samples that the installed package prints."""
    path = Path(run([installed / "overlapscope", "samples"], cwd=tmp_path_factory.mktemp("anywhere")).strip())
    assert path.is_relative_to(installed.parent)
    return path


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the working directory of commands."""
    return tmp_path_factory.mktemp("working")


def modules_after(code: str, names: Sequence[str]) -> set[str]:
    """Return those of `names` that are loaded after `code` has run."""
    check = f"import sys\n{code}\nprint('loaded:', *(set({list(names)!r}) & set(sys.modules)))"
    return set(run([sys.executable, "-c", check], cwd=ROOT).rpartition("loaded:")[2].split())


def test_the_installed_command_helps_in_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    text = run([installed / "overlapscope", "--help"], cwd=tmp_path)
    assert all(command in text for title, group in groups().items() if title for command in group)


def test_every_installed_subcommand_helps(installed: Path, tmp_path: Path) -> None:
    for command in commands():
        assert f"overlapscope {command}" in run([installed / "overlapscope", command, "--help"], cwd=tmp_path)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (0, "analyze {0}"),
        (0, "analyze {0} --format json"),
        (0, "analyze {0} --format markdown"),
        (0, "analyze {0} --format html"),
        (0, "analyze {samples}/host_sync.json.gz --verbose"),
        (0, "diff {0} {1}"),
        (0, "diff {0} {1} --format html"),
        (0, "whatif {0} --best"),
        (0, "check {1} --budget efficiency_pct>=90%"),
        (1, "check {0} --forbid pageable-memory"),
        (0, "ranks {samples}/ddp"),
        (0, "ranks {samples}/ddp --format html"),
        (0, "scenarios report --output report"),
        (0, "explain"),
        (0, "explain pageable-memory"),
        (0, "schema"),
        (0, "cache info"),
        (0, "completion bash"),
        (0, "doctor --format markdown --output doctor.md"),
    ],
)
def test_the_bare_package_does_all_that_needs_no_gpu_browser_or_cluster(
    installed: Path, samples: Path, directory: Path, code: int, line: str
) -> None:
    assert outcome(installed, samples, directory, line) == (code, False, False)


def test_a_baseline_of_the_samples_answers(installed: Path, samples: Path, tmp_path: Path) -> None:
    lines = {
        "check {1} --write-baseline --baseline b.json": 0,
        "check {0} --baseline b.json": 1,
        "check {1} --baseline b.json": 0,
    }
    for line, code in lines.items():
        assert outcome(installed, samples, tmp_path, line) == (code, False, False), line


def outcome(installed: Path, samples: Path, directory: Path, line: str) -> tuple[int, bool, bool]:
    """Return the exit code of a command on the samples, whether it crashed, and whether it asks for another package."""
    pair = samples / "training_naive.json.gz", samples / "training_prefetched.json.gz"
    done = subprocess.run(
        [installed / "overlapscope", *(word.format(*pair, samples=samples) for word in line.split())],
        cwd=directory,
        env=os.environ | {"OVERLAPSCOPE_CACHE_DIR": str(directory / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, "Traceback" in done.stderr, "pip install" in done.stderr


def test_a_diff_of_the_samples_answers(installed: Path, samples: Path, tmp_path: Path) -> None:
    pair = samples / "training_naive.json.gz", samples / "training_prefetched.json.gz"
    assert "faster" in run([installed / "overlapscope", "diff", *pair], cwd=tmp_path).splitlines()[0]


def test_the_wheel_is_small_and_holds_the_samples_alone(wheel: Path) -> None:
    assert wheel.stat().st_size < 3_000_000
    held = {Path(name) for name in zipfile.ZipFile(wheel).namelist() if ".json" in name and "/samples/" in name}
    ours = {file.relative_to(ROOT) for file in (ROOT / "overlapscope" / "samples").rglob("*.json*")}
    assert held == ours
    assert len(ours) == 10
    assert not [
        name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(("tests", "traces", "benchmarks"))
    ]


def test_the_light_install_brings_no_optional_dependency(installed: Path, tmp_path: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {OPTIONAL!r} if u.find_spec(n)])"
    assert run([installed / "python", "-c", code], cwd=tmp_path).strip() == "[]"


def test_the_wheel_holds_every_file_that_pages_need(wheel: Path) -> None:
    # Files beside the modules, by their path in the package.
    ours = ROOT / "overlapscope"
    files = [file for file in ours.rglob("*") if file.suffix in (".css", ".js", ".ico", ".svg", ".html")]
    assert len(files) > 10
    held = zipfile.ZipFile(wheel).namelist()
    assert {file.relative_to(ROOT).as_posix() for file in files} <= set(held)


def test_the_dashboard_says_what_to_install(installed: Path, wheel: Path, tmp_path: Path) -> None:
    trace = str(ROOT / "traces" / "pipeline_1stream.json.gz")
    done = subprocess.run(
        [installed / "overlapscope", "dashboard", trace], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and f"`pip install '{wheel}[dashboard]'`" in done.stderr


def test_importing_the_package_loads_no_optional_dependency_and_no_pandas() -> None:
    assert modules_after("import overlapscope", [*OPTIONAL, "pandas", "plotly"]) == set()


def test_help_loads_no_numpy() -> None:
    code = "from overlapscope.commands import main\nassert main(['--help']) == 0"
    assert modules_after(code, [*OPTIONAL, "pandas", "numpy", "msgspec"]) == set()


def test_run_without_torch_says_what_to_install_and_runs_nothing(installed: Path, wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("open('ran', 'w')")
    done = subprocess.run(
        [installed / "overlapscope", "run", "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and f"`pip install '{wheel}[record]'`" in done.stderr
    assert not (tmp_path / "ran").exists()
