"""The composite action, its steps run by hand as GitHub's runner would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.test_check_formats import read_github, read_junit

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
HEALTHY = ROOT / "traces/known_causes/healthy_prefetch.json.gz"
BROKEN = ROOT / "traces/known_causes/pageable_memory.json.gz"
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")

INJECTIONS = [
    "$(touch pwned) `touch pwned` ${{ github.token }}",
    '"; touch pwned; "',
    "'; touch pwned; '\ntouch pwned & touch pwned | cat\n",
]


class Job:
    """What the runner gives to the steps of one job, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.workspace, self.temp = directory / "workspace", directory / "temp"
        self.output, self.summary = directory / "output", directory / "summary"
        for made in (self.workspace, self.temp):
            made.mkdir()
        # Without it, one in a directory above would be found.
        (self.workspace / "overlapscope.toml").touch()
        for file in (self.output, self.summary):
            file.touch()

    def installed(self) -> Job:
        """As if the step that installs had been run."""
        programs = self.temp / "overlapscope" / "bin"
        programs.mkdir(parents=True)
        (programs / "overlapscope").symlink_to(Path(sys.executable).parent / "overlapscope")
        return self

    def step(self, name: str, /, **inputs: str) -> subprocess.CompletedProcess[str]:
        """Run a step with the given inputs, and the others as they are when they are not given."""
        [step] = [one for one in STEPS if one["name"] == name]
        given = {key: str(one.get("default", "")) for key, one in ACTION["inputs"].items()}
        given |= {key.replace("_", "-"): value for key, value in inputs.items()}
        script = self.temp / "step.sh"
        script.write_text(step["run"])
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.temp),
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "RUNNER_TEMP": str(self.temp),
            # Little of what is installed is ever imported.
            "PIP_NO_COMPILE": "1",
        }
        environment |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
        environment |= {key: evaluated(value, given) for key, value in step["env"].items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=self.workspace,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not list(self.workspace.rglob("pwned")) + list(self.temp.glob("pwned"))
        return done

    def outputs(self) -> dict[str, str]:
        """What the steps have put out so far."""
        return dict(line.split("=", 1) for line in self.output.read_text().splitlines())


def evaluated(template: str, inputs: dict[str, str]) -> str:
    """A value of `env`, as the runner fills it in; only inputs may stand there."""
    return EXPRESSION.sub(lambda match: inputs[match[1].removeprefix("inputs.")], template)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path).installed()


# -- the file -----------------------------------------------------------------------------------------


def test_it_is_a_composite_action_that_says_what_it_takes_and_gives() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert all(one["description"] for one in (*ACTION["inputs"].values(), *ACTION["outputs"].values()))
    assert [name for name, one in ACTION["inputs"].items() if one["required"]] == ["traces"]
    assert all(one["required"] or one["default"] == "" for one in ACTION["inputs"].values())
    assert all(step["shell"] == "bash" for step in STEPS if "run" in step)


def test_no_input_becomes_part_of_a_script() -> None:
    for step in STEPS:
        assert not EXPRESSION.search(step.get("run", ""))
        for value in step.get("env", {}).values():
            [expression] = EXPRESSION.findall(value)
            assert expression.removeprefix("inputs.") in ACTION["inputs"]


def test_every_input_is_used() -> None:
    used = set(re.findall(r"inputs\.([\w-]+)", str(STEPS)))
    assert used == set(ACTION["inputs"])


# -- the check ----------------------------------------------------------------------------------------


def test_a_healthy_trace_passes(job: Job) -> None:
    done = job.step("Check", traces=str(HEALTHY))
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.outputs() == {"outcome": "pass", "exit-code": "0"}
    assert [one["command"] for one in read_github(done.stdout)] == ["notice"]
    assert job.summary.read_text().startswith("# overlapscope check: passed")


def test_a_broken_trace_fails_with_its_cause(job: Job) -> None:
    done = job.step("Check", traces=str(BROKEN))
    assert done.returncode == 1, done.stdout + done.stderr
    assert job.outputs() == {"outcome": "fail", "exit-code": "1"}
    commands = read_github(done.stdout)
    assert commands[0]["command"] == "error" and "pageable-copy" in commands[0]["title"]
    assert job.summary.read_text().startswith("# overlapscope check: failed")


def test_budgets_come_as_arguments_one_a_line(job: Job) -> None:
    done = job.step(
        "Check", traces=str(HEALTHY), args="\n  --budget=efficiency_pct >= 99.99%\n\n  --fail-level\n  warn\n"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "efficiency_pct" in read_github(done.stdout)[0]["title"]


def test_budgets_come_from_a_configuration(job: Job) -> None:
    (job.workspace / "my budgets.toml").write_text('[budgets]\nstep_time = { max = "1 us" }\n')
    done = job.step("Check", traces=str(HEALTHY), config="my budgets.toml")
    assert done.returncode == 1, done.stdout + done.stderr
    (job.workspace / "my budgets.toml").rename(job.workspace / "overlapscope.toml")
    done = job.step("Check", traces=str(HEALTHY))
    assert done.returncode == 1, done.stdout + done.stderr


def test_several_traces_are_checked_together(job: Job) -> None:
    done = job.step("Check", traces=f"\n{HEALTHY}\n{BROKEN}\n")
    assert job.outputs()["outcome"] == "fail", done.stdout + done.stderr


def test_a_junit_report_is_written_where_asked(job: Job) -> None:
    job.step("Check", traces=str(BROKEN), junit="a report.xml")
    assert int(read_junit((job.workspace / "a report.xml").read_text()).get("failures", 0)) > 0


def test_a_baseline_is_compared_with(job: Job) -> None:
    program = job.temp / "overlapscope/bin/overlapscope"
    subprocess.run([program, "baseline", "write", HEALTHY, "-o", job.workspace / "base.json"], check=True)
    done = job.step("Check", traces=str(HEALTHY), baseline="base.json")
    assert done.returncode in (0, 3), done.stdout + done.stderr
    assert job.outputs()["outcome"] in ("pass", "inconclusive")


def test_what_cannot_be_checked_is_an_error_of_its_own(job: Job) -> None:
    done = job.step("Check", traces="missing.json.gz")
    assert done.returncode == 2
    assert job.outputs() == {"outcome": "error", "exit-code": "2"}
    assert "missing.json.gz" in done.stderr
    assert done.stdout.startswith("::error title=overlapscope check::")


@pytest.mark.parametrize("hostile", INJECTIONS)
@pytest.mark.parametrize("field", ["traces", "baseline", "config", "args", "junit"])
def test_an_input_cannot_run_commands(job: Job, field: str, hostile: str) -> None:
    inputs = {"traces": str(HEALTHY), field: hostile}
    done = job.step("Check", **inputs)
    assert job.outputs() == {
        "outcome": {0: "pass", 2: "error"}[done.returncode],
        "exit-code": str(done.returncode),
    }


def test_a_trace_cannot_be_an_option(job: Job) -> None:
    done = job.step("Check", traces=f"--help\n{HEALTHY}")
    assert done.returncode == 2 and "usage" not in done.stdout


# -- the installation ---------------------------------------------------------------------------------


def small_wheel(directory: Path) -> Path:
    """A package without dependencies whose program says that it is there."""
    wheel = directory / "overlapscope-0-py3-none-any.whl"
    info = "overlapscope-0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("overlapscope.py", "def main():\n    print('installed')\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: overlapscope\nVersion: 0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/entry_points.txt", "[console_scripts]\noverlapscope = overlapscope:main\n")
        file.writestr(f"{info}/RECORD", "")
    return wheel


def test_what_is_installed_cannot_be_a_command_or_an_option_and_what_is_asked_for_is_installed_then(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path)
    for hostile in ("$(touch pwned)", "-rpwned"):
        done = job.step("Install overlapscope", install=hostile)
        assert done.returncode != 0 and "Usage" not in done.stdout
    done = job.step("Install overlapscope", install=str(small_wheel(tmp_path)))
    assert done.returncode == 0, done.stderr
    # Where tests run in a checkout that is not installed, PYTHONPATH names it.
    programs = job.temp / "overlapscope/bin"
    said = subprocess.run(
        [programs / "python", "-I", programs / "overlapscope"], capture_output=True, text=True, check=True
    )
    assert said.stdout == "installed\n"


def test_the_action_installs_its_own_checkout_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONSTRAINT", str(ROOT / "requirements/ci.txt"))
    job = Job(tmp_path)
    done = job.step("Install overlapscope")
    assert done.returncode == 0, done.stderr
    done = job.step("Check", traces=str(BROKEN))
    assert done.returncode == 1, done.stdout + done.stderr
    assert job.outputs()["outcome"] == "fail"
