"""The files that GitHub, PyPI and pre-commit read: each is of the form that its reader wants, and they agree."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import tomllib
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from overlapscope.commands import main
from overlapscope.version import __version__
from tests.support.schemas import validate

ROOT = Path(__file__).parents[3]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = [path for path in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
SCHEMAS = {
    **dict.fromkeys(WORKFLOWS, "github-workflows"),
    **dict.fromkeys(FORMS, "github-issue-forms"),
    GITHUB / "ISSUE_TEMPLATE" / "config.yml": "github-issue-config",
    GITHUB / "dependabot.yml": "dependabot",
    ROOT / "action.yml": "github-actions",
    ROOT / "CITATION.cff": "citation-file-format",
}
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("room", ["prediction", "ranks", "recorder"])
def test_a_large_room_says_what_each_of_its_modules_is_for(room: str) -> None:
    folder = ROOT / "overlapscope" / room
    modules = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert modules - {"__init__"} == set(re.findall(r"`(\w+)`", docstring)) & modules


def read(path: Path) -> Any:
    """Return a YAML file as GitHub reads it: `on` is a name there, not a boolean."""
    return yaml.load(path.read_text(), yaml.BaseLoader)


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_it_is_what_its_reader_wants(path: Path) -> None:
    vendored = resources.files("check_jsonschema.builtin_schemas.vendor") / f"{SCHEMAS[path]}.json"
    validate(yaml.safe_load(path.read_text().replace("\non:", '\n"on":')), json.loads(vendored.read_text()))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_write_nothing_unasked_and_runs_only_what_is_pinned(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "timeout-minutes" in job
        for step in job["steps"]:
            # Names that a contributor chooses must not become part of a script.
            assert "${{" not in step.get("run", "")
            assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] == "false"


def test_only_the_job_that_publishes_can_speak_for_the_project_on_pypi() -> None:
    jobs = read(GITHUB / "workflows" / "release.yml")["jobs"]
    assert {name for name, job in jobs.items() if "id-token" in job.get("permissions", {})} == {"pypi"}
    assert jobs["pypi"]["needs"] == "build" and jobs["pypi"]["environment"]["name"] == "pypi"
    assert jobs["pypi"]["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")


def test_ci_runs_every_python_that_the_package_is_for() -> None:
    matches = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    matrix = read(GITHUB / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == matches
    assert PROJECT["requires-python"] == f">={matches[0]}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_make_what_the_makefile_has(path: Path) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"run: make (\w+)", path.read_text())) <= set(targets)


@pytest.mark.parametrize("form", ["defect", "wrong-diagnosis"])
def test_who_reports_a_fault_is_asked_for_the_installation_and_the_trust_of_the_trace(form: str) -> None:
    text = (GITHUB / "ISSUE_TEMPLATE" / f"{form}.yml").read_text()
    assert "overlapscope doctor" in text and "lines on trust" in text


def test_the_version_is_the_same_wherever_it_stands() -> None:
    changelog = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert changelog[:2] == ["Unreleased", __version__]
    assert read(ROOT / "CITATION.cff")["version"] == __version__
    pages = "".join((ROOT / "docs" / room / "ci.md").read_text() for room in ("guides", "reference"))
    named = re.findall(r"overlapscope/overlapscope\n?.*?(?:@|rev: )v([\d.]+)", pages)
    assert named and set(named) == {__version__}


def test_the_hooks_of_this_repository_use_the_tested_ruff() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    pins = (ROOT / "requirements" / "ci.txt").read_text().splitlines()
    for hook in config["repos"][0]["hooks"]:
        assert set(hook["additional_dependencies"]) <= set(pins)


def test_the_hook_for_stored_traces_takes_what_recorders_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (hook,) = HOOKS
    for name in ("train.trace.json.gz", "host_1.1719.pt.trace.json", "a/b.trace.json.zst"):
        assert re.search(hook["files"], name)
    assert not re.search(hook["files"], "package.json")
    shutil.copy(ROOT / "traces" / "pipeline_1stream.json.gz", tmp_path / "train.trace.json.gz")
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(hook["entry"])
    assert program in PROJECT["scripts"]
    assert main([*arguments, "train.trace.json.gz"]) == 1
    assert "same-stream" in capsys.readouterr().out


def test_each_class_has_a_name_of_its_own() -> None:
    # Each program of this folder is the edited version of a program beside it, and keeps its names.
    edited = ROOT / "tests" / "programs" / "trials" / "by_hand"
    folders = ("overlapscope", "tests", "benchmarks", "scenarios", "docs")
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py") if edited not in path.parents)
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
