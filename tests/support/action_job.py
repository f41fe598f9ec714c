"""GitHub's runner, as far as the composite action needs it: its steps are run by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


class WorkflowJob:
    """A job of GitHub's runner, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.workspace, self.temp = directory / "workspace", directory / "temp"
        self.output, self.summary = directory / "output", directory / "summary"
        self.environment: dict[str, str] = {}
        """Further variables of the steps."""
        for folder in (self.workspace, self.temp):
            folder.mkdir()
        # Without it, one in a directory above would be found.
        (self.workspace / "overlapscope.toml").touch()
        for file in (self.output, self.summary):
            file.touch()

    def installed(self) -> WorkflowJob:
        """As if the step that installs had been run."""
        programs = self.temp / "overlapscope" / "bin"
        programs.mkdir(parents=True)
        (programs / "overlapscope").symlink_to(Path(sys.executable).parent / "overlapscope")
        return self

    def step(self, name: str, /, **inputs: str) -> subprocess.CompletedProcess[str]:
        """Run a step with the given inputs, and with the defaults of the others."""
        [step] = [step for step in STEPS if step["name"] == name]
        given = {key: str(properties.get("default", "")) for key, properties in ACTION["inputs"].items()}
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
            # Few installed modules are ever imported.
            "PIP_NO_COMPILE": "1",
        }
        environment |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
        environment |= self.environment
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
        """Return the outputs of the steps so far."""
        return dict(line.split("=", 1) for line in self.output.read_text().splitlines())


def evaluated(template: str, inputs: dict[str, str]) -> str:
    """Return a value of `env`, as the runner fills it in; only inputs may stand there."""
    return EXPRESSION.sub(lambda match: inputs[match[1].removeprefix("inputs.")], template)
