"""`overlapscope ci init` in repositories as teams have them."""

from __future__ import annotations

import io
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml

from overlapscope.analysis import analyze_trace
from overlapscope.budgets.check import check
from overlapscope.budgets.config import expression, from_mapping
from overlapscope.budgets.settings import Settings
from overlapscope.commands import main
from overlapscope.plugins.ci.repository import repository_of
from overlapscope.plugins.ci.setup import limits_of
from overlapscope.report.model import build
from overlapscope.trace.model import Kind
from tests.plugins.ci.toys import BROKEN, GOOD, PROGRAMS, TOYS, TRACE, ToyRepository
from tests.support.helpers import US, Op, make_trace

by_toy = pytest.mark.parametrize("toy", TOYS, ids=[toy.name for toy in TOYS])
NAMED = {toy.name: toy for toy in TOYS}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The directory of a toy's project, which is the current directory."""
    made: Path = request.param.make(tmp_path / "repository")
    monkeypatch.chdir(made)
    return made


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("project", [NAMED[name]], indirect=True)


@by_toy
def test_the_check_passes_at_once_and_a_second_call_changes_nothing(
    toy: ToyRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(toy.make(tmp_path))
    before = everything(tmp_path)
    assert main(["ci", "init", "--yes"]) == 0
    out, err = capsys.readouterr()
    assert "Passed: 5 promises" in out and "Next: `git" in err
    written = everything(tmp_path)
    assert len(written) > len(before)
    assert main(["ci", "init", "--yes"]) == 0
    assert everything(tmp_path) == written
    assert "everything is there" in capsys.readouterr().err


@by_toy
def test_broken_overlap_fails_and_the_message_says_what_to_do(
    toy: ToyRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(toy.make(tmp_path))
    assert main(["ci", "init", "--yes"]) == 0
    capsys.readouterr()
    shutil.copy(BROKEN, TRACE)
    assert main(["check", TRACE]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "overlap lost: H2D 33.6 MB" in out and "prefetch.py:13 in upload" in out
    assert "Issue it on a stream of its own" in out


@by_toy
def test_what_is_written_is_yaml_with_the_jobs_that_the_repository_needs(
    toy: ToyRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy.make(tmp_path))
    main(["ci", "init", "--yes"])
    texts = [path.read_text() for path in tmp_path.rglob("*overlapscope*.yml")]
    for text in texts:
        assert isinstance(yaml.safe_load(text), dict)
        assert "<" not in text.replace("<<<", "")
        assert max(map(len, text.splitlines())) < 200
    assert len(texts) == {"GitHub": 2, "pytest alone": 0, "GitLab": 1, "GPU runner of GitLab": 1}.get(toy.name, 2)


@of("GPU runner of GitHub, and tests that record")
def test_a_runner_that_another_job_uses_records_and_runs_the_tests_that_record(project: Path) -> None:
    assert main(["ci", "init", "--yes"]) == 0
    workflow = yaml.safe_load((project / ".github/workflows/overlapscope.yml").read_text())
    job = workflow["jobs"]["overlap"]
    assert job["runs-on"] == ["self-hosted", "linux", "gpu"]
    steps = {step["name"]: step["run"] for step in job["steps"] if "run" in step}
    assert list(steps) == ["Install", "Record", "Check", "Test"]
    assert steps["Install"].splitlines()[1] == "python -m pip install -r requirements.txt"
    assert steps["Record"].strip().endswith('--force --output "$TRACE" prefetch.py')
    assert "--overlap-require tests/test_overlap_of_loader.py" in steps["Test"]
    # Code of a fork doesn't reach the machine.
    assert "head.repo.full_name == github.repository" in job["if"]


@of("GPU runner of GitLab")
def test_tags_of_another_job_are_found_and_the_pipeline_keeps_its_jobs(project: Path) -> None:
    assert main(["ci", "init", "--yes"]) == 0
    pipeline = yaml.safe_load((project / ".gitlab-ci.yml").read_text())
    assert pipeline["include"] == [{"local": ".gitlab/overlapscope.yml"}]
    assert pipeline["train"]["script"] == ["python prefetch.py"]
    assert yaml.safe_load((project / ".gitlab/overlapscope.yml").read_text())["overlapscope"]["tags"] == [
        "docker",
        "a100",
    ]


@of("GitLab")
def test_a_list_of_included_files_gets_another_entry(project: Path) -> None:
    assert main(["ci", "init", "--yes"]) == 0
    included = yaml.safe_load((project / ".gitlab-ci.yml").read_text())["include"]
    assert included == [{"local": ".gitlab/overlapscope.yml"}, {"template": "Jobs/SAST.gitlab-ci.yml"}]


@of("GitLab")
def test_a_list_of_included_files_of_another_form_is_left_to_the_user(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / ".gitlab-ci.yml").write_text("include: {template: x.yml}\n")
    before = everything(project)
    assert main(["ci", "init", "--yes"]) == 2
    assert "add `- local: .gitlab/overlapscope.yml` to its `include`" in capsys.readouterr().err
    assert everything(project) == before


@of("monorepo on GitHub")
def test_a_project_of_a_monorepo_has_its_own_workflow_which_runs_in_its_directory(project: Path) -> None:
    assert main(["ci", "init", "--yes"]) == 0
    workflows = project.parents[1] / ".github/workflows"
    workflow = yaml.safe_load((workflows / "overlapscope-packages-vision.yml").read_text())
    assert workflow[True]["pull_request"]["paths"] == ["packages/vision/**"]
    job = workflow["jobs"]["overlap"]
    assert job["defaults"]["run"]["working-directory"] == "packages/vision"
    assert job["steps"][-1]["with"]["path"] == f"packages/vision/{TRACE}"
    comment = yaml.safe_load((workflows / "overlapscope-packages-vision-comment.yml").read_text())
    assert comment[True]["workflow_run"]["workflows"] == [workflow["name"]]
    assert (project / "overlapscope.toml").is_file() and (project / "overlap.contract.toml").is_file()


@of("pytest alone")
def test_a_repository_with_nothing_but_tests_gets_one(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["ci", "init", "--yes"]) == 0
    names: dict[str, object] = {"__file__": str(project / "tests/test_overlap.py")}
    exec((project / "tests/test_overlap.py").read_text(), names)
    test = names["test_overlap"]
    assert callable(test)
    test()
    shutil.copy(BROKEN, TRACE)
    with pytest.raises(AssertionError, match="overlap lost"):
        test()


@of("GitHub")
def test_edits_of_the_user_stay(project: Path) -> None:
    (project / "overlapscope.toml").write_text("[budgets]\nidle_pct = { max = '50%' }\n")
    assert main(["ci", "init", "--yes"]) == 0
    workflow = project / ".github/workflows/overlapscope.yml"
    workflow.write_text("name: overlapscope\n")
    assert main(["ci", "init", "--yes"]) == 0
    assert workflow.read_text() == "name: overlapscope\n"
    assert "50%" in (project / "overlapscope.toml").read_text()


@of("GitHub")
def test_nothing_is_written_unless_someone_agrees(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(project)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["ci", "init"]) == 2
    out, err = capsys.readouterr()
    assert "+++ .github/workflows/overlapscope.yml" in out and "pass --yes" in err
    for answer, code in (("n\n", 2), ("\n", 0)):
        terminal = io.StringIO(answer)
        terminal.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdin", terminal)
        assert everything(project) == before
        assert main(["ci", "init"]) == code
    assert everything(project) != before


@of("GPU runner of GitLab")
def test_ranks_are_checked_as_stored(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / TRACE).unlink()
    shutil.copytree(PROGRAMS.parents[2] / "overlapscope/samples/ddp", project / "train.traces")
    assert main(["ci", "init", "--yes"]) == 2
    assert "pass --stored" in capsys.readouterr().err
    assert main(["ci", "init", "--yes", "--stored"]) == 0
    job = yaml.safe_load((project / ".gitlab/overlapscope.yml").read_text())["overlapscope"]
    assert job["variables"]["TRACE"] == "train.traces" and "tags" not in job


@of("GitHub")
def test_overlapscope_is_installed_from_where_the_user_says(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requirement = "overlapscope @ git+https://git.example/o.git@4a39f1b"
    assert main(["ci", "init", "--yes", "--install", requirement]) == 0
    assert f"The job installs '{requirement}'" in capsys.readouterr().err
    workflow = yaml.safe_load((project / ".github/workflows/overlapscope.yml").read_text())
    installs = [step["run"] for step in workflow["jobs"]["overlap"]["steps"] if step.get("name") == "Install"]
    assert installs == [f"python -m pip install '{requirement}'\n"]


def test_a_recording_without_steps_has_limits_of_all_of_it() -> None:
    ops = [
        Op(Kind.COMPUTE, start * US, (start + length) * US, launch=(start * US - 90, start * US - 10), name=name)
        for start, length, name in ((10, 700, "gemm"), (900, 300, "softmax"), (1300, 650, "conv"))
    ]
    report = build([analyze_trace(make_trace(ops))])
    limits = list(limits_of(report))
    assert [limit.budget.title.split(" ", 2)[:2] for limit in limits] == [["window", "idle_pct"]]
    budgets = tuple(map(expression, (limit.budget.title for limit in limits)))
    assert check(report, Settings(budgets=budgets)).outcome == "pass"
    assert from_mapping({"budgets": tomllib.loads(limits[0].line)}, "x").budgets[0].scope == "window"


@pytest.mark.parametrize(
    ("labels", "runner"),
    [
        ("[self-hosted, gpu]", "[self-hosted, gpu]"),
        ("linux-a100", "linux-a100"),
        ("ubuntu-latest", None),
        ("test4", None),
        ("${{ matrix.gpu }}", None),
    ],
)
def test_a_runner_with_a_gpu_is_known_by_its_labels(labels: str, runner: str | None, tmp_path: Path) -> None:
    (tmp_path / ".github/workflows").mkdir(parents=True)
    (tmp_path / ".github/workflows/x.yml").write_text(f"jobs:\n  x:\n    runs-on: {labels}\n")
    assert repository_of(tmp_path).gpu_runner("github") == runner


@of("GitHub")
def test_the_newest_recording_is_taken(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "runs").mkdir()
    shutil.copy(GOOD, project / "runs" / "late.trace.json.gz")
    assert main(["ci", "init", "--yes"]) == 0
    assert "runs/late.trace.json.gz" in capsys.readouterr().out
    assert "TRACE: 'runs/late.trace.json.gz'" in (project / ".github/workflows/overlapscope.yml").read_text()


def test_without_a_recording_the_first_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ci", "init"]) == 2
    assert "`overlapscope run --active 20 train.py`" in capsys.readouterr().err


@of("GPU runner of GitHub, and tests that record")
def test_a_script_that_is_not_found_must_be_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "prefetch.py").unlink()
    assert main(["ci", "init", "--yes"]) == 2
    assert "0 files are named prefetch.py" in capsys.readouterr().err
    assert main(["ci", "init", "--yes", "--program", "src/prefetch.py --steps 60"]) == 0
    workflow = (project / ".github/workflows/overlapscope.yml").read_text()
    assert '--output "$TRACE" src/prefetch.py --steps 60\n' in workflow


@of("GitHub")
@pytest.mark.parametrize(
    "name",
    [
        "${{ x }}.trace.json.gz",
        "a'b.trace.json.gz",
        "a:b.trace.json.gz",
        "$(x).trace.json.gz",
        "a;b.trace.json.gz",
        "a b.trace.json.gz",
        "-a.trace.json.gz",
        "@a.trace.json.gz",
    ],
)
def test_a_name_that_a_workflow_would_run_is_refused(
    project: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / TRACE).rename(project / name)
    before = everything(project)
    assert main(["ci", "init", "--yes"]) == 2
    assert everything(project) == before


@of("GitLab")
def test_a_directory_that_a_shell_would_run_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "a;b").mkdir()
    (project / "a;b/pyproject.toml").touch()
    shutil.copy(GOOD, project / "a;b")
    monkeypatch.chdir("a;b")
    before = everything(project)
    assert main(["ci", "init", "--yes"]) == 2
    assert "rename it" in capsys.readouterr().err and everything(project) == before


@of("GitHub")
@pytest.mark.parametrize("runner", ["", "[]", "gpu # fast", "gpu]: {", "a,,b"])
def test_a_runner_is_named_by_labels(runner: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(project)
    assert main(["ci", "init", "--yes", "--runner", runner]) == 2
    assert "name labels" in capsys.readouterr().err and everything(project) == before


@of("GitHub")
@pytest.mark.parametrize("linked", [False, True])
def test_a_recording_outside_of_the_project_is_refused(
    linked: bool, project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / TRACE).rename(tmp_path / TRACE)
    if linked:
        (project / TRACE).symlink_to(tmp_path / TRACE)
    before = everything(project)
    assert main(["ci", "init", "--yes", *([] if linked else [f"../{TRACE}"])]) == 2
    assert "is outside of the project" in capsys.readouterr().err and everything(project) == before


@of("GitHub")
def test_nothing_is_written_through_a_link_out_of_the_repository(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    shutil.rmtree(project / ".github/workflows")
    (project / ".github/workflows").symlink_to(tmp_path / "elsewhere")
    assert main(["ci", "init", "--yes"]) == 2
    assert "leads out of the repository" in capsys.readouterr().err
    assert not [*(tmp_path / "elsewhere").iterdir()] and not (project / "overlapscope.toml").exists()


@of("pytest alone")
def test_a_test_of_the_same_name_is_not_taken_for_the_check(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "tests/test_overlap.py").write_text("def test_overlap(): pass\n")
    assert main(["ci", "init", "--yes"]) == 2
    assert "rename it" in capsys.readouterr().err


@of("GitLab")
@pytest.mark.parametrize(
    ("stages", "stage"),
    [
        ("stages: [build, deploy]\n", "build"),
        ("stages:\n  - 'lint all'\n  - deploy\nx: {script: y}\n", "lint all"),
        ("stages:\n- build\n- test\n", None),
        ("", None),
    ],
)
def test_the_job_has_a_stage_of_the_pipeline(stages: str, stage: str | None, project: Path) -> None:
    (project / ".gitlab-ci.yml").write_text(stages)
    assert main(["ci", "init", "--yes"]) == 0
    assert yaml.safe_load((project / ".gitlab/overlapscope.yml").read_text())["overlapscope"].get("stage") == stage


@pytest.mark.parametrize(
    ("files", "branch"),
    [
        ({}, "main"),
        ({"refs/heads/master": "0" * 40}, "master"),
        ({"packed-refs": f"{'0' * 40} refs/heads/master\n"}, "master"),
        ({"refs/heads/master": "0" * 40, "refs/heads/main": "0" * 40}, "main"),
        ({"refs/heads/main": "0" * 40, "refs/remotes/origin/HEAD": "ref: refs/remotes/origin/trunk\n"}, "trunk"),
    ],
)
def test_the_default_branch_is_known(files: dict[str, str], branch: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / ".git" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ".git" / name).write_text(content)
    assert repository_of(tmp_path).default_branch() == branch


def test_a_worktree_has_the_remote_of_its_repository(tmp_path: Path) -> None:
    of_worktree = tmp_path / "repository/.git/worktrees/second"
    of_worktree.mkdir(parents=True)
    (of_worktree / "commondir").write_text("../..\n")
    (tmp_path / "repository/.git/config").write_text('[remote "origin"]\n\turl = git@github.com:team/model\n')
    (tmp_path / "second").mkdir()
    (tmp_path / "second/.git").write_text(f"gitdir: {of_worktree}\n")
    assert repository_of(tmp_path / "second").system() == "github"


@pytest.mark.parametrize("sample", ["training_naive", "data_loading", "host_sync"])
def test_a_program_that_is_poor_today_passes_too(sample: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = PROGRAMS.parents[2] / "overlapscope" / "samples"
    shutil.copy(samples / f"{sample}.json.gz", tmp_path / "train.trace.json.gz")
    monkeypatch.chdir(tmp_path)
    assert main(["ci", "init", "--yes"]) == 0
    assert main(["check", "train.trace.json.gz"]) == 0
