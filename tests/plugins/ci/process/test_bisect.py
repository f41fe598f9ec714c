"""`overlapscope bisect` in repositories. A script that stands for Python "records" the trace that train.py names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overlapscope.base.child import ROOT
from overlapscope.commands import main
from overlapscope.plugins.ci.bisect import find
from overlapscope.plugins.ci.bisect import program as program_module
from overlapscope.plugins.ci.bisect.commits import BisectedRepository
from overlapscope.plugins.ci.bisect.program import program, variables
from tests.support.helpers import TRACES, with_plain_steps

KEEPS = str(TRACES / "further/training/prefetched.json.gz")
LOSES = str(TRACES / "further/training/late.json.gz")
_PYTHON = f"""#!/bin/sh
if [ "$1" = -c ]; then exec {sys.executable} "$@"; fi
pwd >> {{log}}
while [ "$1" != -o ]; do shift; done
TARGET="$2"
. ./train.py
"""


class Project:
    """A repository, and a program whose script is sourced by a shell."""

    def __init__(self, folder: Path) -> None:
        self.top, self.log = folder / "project", folder / "log"
        self.top.mkdir()
        self.python = folder / "bin" / "python3"
        self.python.parent.mkdir()
        self.python.write_text(_PYTHON.format(log=self.log))
        self.python.chmod(0o755)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=Ann [b]", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(self.top), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, script: str, subject: str = "change") -> str:
        (self.top / "train.py").write_text(f"{script}\n")
        (self.top / "count").write_text(f"{len(self.git('rev-list', '--all'))}")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def records(self, trace: str, subject: str = "change") -> str:
        """Add a commit whose program records this trace."""
        return self.commit(f'cp {trace} "$TARGET"', subject)

    def bisect(self, *words: str) -> int:
        return main(["bisect", *words, "--", str(self.python), "train.py"])

    @property
    def recordings(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("OVERLAPSCOPE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    made = Project(tmp_path)
    monkeypatch.chdir(made.top)
    return made


def test_the_commit_is_named_with_what_it_lost_and_changed(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    good = project.records(KEEPS)
    project.records(KEEPS)
    project.commit("exit 3", "broken")
    project.commit("exit 3", "broken")
    project.records(KEEPS)
    lost = project.records(LOSES, "wait \x1b[31mearly [bold]")
    project.records(LOSES)
    (project.top / "train.py").write_text("mine")
    assert project.bisect(good, "main") == 0
    shown = capfd.readouterr()
    assert f"{lost[:10]} is the first that loses what" in shown.out
    assert "wait \\x1b[31mearly [bold], Ann [b]" in shown.out and "\x1b[31m" not in shown.out
    assert "overlap lost: H2D" in shown.out and f"+cp {LOSES}" in shown.out and f"git show {lost[:10]}" in shown.out
    assert "skipped: it exited with code 3" in shown.err and "not committed" in shown.err


def test_nothing_of_the_users_changes(project: Project) -> None:
    hook = project.top / ".git/hooks/post-checkout"
    hook.write_text("#!/bin/sh\ntouch ran\n")
    hook.chmod(0o755)
    good = project.records(KEEPS)
    project.records(LOSES)
    (project.top / "train.py").write_text("mine")
    (project.top / "data").write_text("untracked")
    before = project.git("status", "--porcelain"), project.git("for-each-ref"), project.git("symbolic-ref", "HEAD")
    assert project.bisect(good, "main") == 0
    assert before == (
        project.git("status", "--porcelain"),
        project.git("for-each-ref"),
        project.git("symbolic-ref", "HEAD"),
    )
    assert len(project.git("worktree", "list").splitlines()) == 1
    assert not (project.top / "ran").exists()
    assert str(project.top) not in project.log.read_text().splitlines()


def test_skipped_commits_leave_a_range(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    good = project.records(KEEPS)
    broken = project.commit("exit 3", "broken")
    bad = project.records(LOSES)
    assert project.bisect(good, "main", "--format", "json") == 1
    result = json.loads(capfd.readouterr().out)
    assert result["first"] is None and {each["id"] for each in result["possible"]} == {broken, bad}


def test_an_interrupted_search_continues(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    good = project.records(KEEPS)
    for trace in (KEEPS, LOSES, LOSES):
        project.records(trace)
    recorded: list[object] = []
    real = program_module.record

    def interrupted(*arguments: object) -> None:
        if len(recorded) == 4:
            raise KeyboardInterrupt
        recorded.append(arguments)
        real(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(find, "record", interrupted)
        assert project.bisect(good, "main") == 130
    assert "the same command continues" in capfd.readouterr().err and project.recordings == 4
    assert len(project.git("worktree", "list").splitlines()) == 1
    assert project.bisect(good, "main") == 0
    continued = project.recordings
    assert project.bisect(good, "main") == 0 and project.recordings == continued
    project.log.unlink()
    assert project.bisect(good, "HEAD~", "--anew") == 0 and project.recordings > 3


def test_a_worktree_that_the_program_breaks_leads_git_to_no_other_repository(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OVERLAPSCOPE_CACHE_DIR", str(project.top / "cache"))
    good = project.records(KEEPS)
    project.records(LOSES)
    (project.top / "train.py").write_text("mine")
    assert project.bisect("--setup", "rm .git", good, "main") == 2
    assert (project.top / "train.py").read_text() == "mine"
    assert project.git("symbolic-ref", "HEAD") == "refs/heads/main"
    assert "not a git repository" in capfd.readouterr().err


def test_a_commit_that_could_not_be_judged_is_tried_again_by_the_next_search(project: Project) -> None:
    good = project.records(KEEPS)
    project.commit(f'[ -e {project.top}/mended ] && cp {KEEPS} "$TARGET" || exit 3')
    project.records(LOSES)
    assert project.bisect(good, "main") == 1
    (project.top / "mended").touch()
    assert project.bisect(good, "main") == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_search_that_is_ended_ends_the_program_and_leaves_no_worktree(project: Project, number: int) -> None:
    good = project.commit(f"sleep 0.3; echo $$ > {project.top}/pid; exec sleep 100")
    project.records(LOSES)
    command = [sys.executable, "-m", "overlapscope", "bisect", good, "main", "--", str(project.python), "train.py"]
    with subprocess.Popen(command, cwd=project.top, env=os.environ | {"PYTHONPATH": str(ROOT)}) as search:
        while not ((pid := project.top / "pid").exists() and pid.read_text().strip()):
            time.sleep(0.02)
        search.send_signal(number)
    assert search.returncode == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert len(project.git("worktree", "list").splitlines()) == 1


def test_nohup_keeps_a_search_going_without_its_terminal(project: Project) -> None:
    started = project.top / "started"
    good = project.commit(f'touch {started}; sleep 0.2; cp {KEEPS} "$TARGET"')
    project.records(LOSES)
    words = ["bisect", good, "main", "--", str(project.python), "train.py"]
    command = ["nohup", sys.executable, "-m", "overlapscope", *words]
    with subprocess.Popen(command, cwd=project.top, env=os.environ | {"PYTHONPATH": str(ROOT)}) as search:
        while not started.exists():
            time.sleep(0.02)
        search.send_signal(signal.SIGHUP)
    assert search.returncode == 0


@pytest.mark.parametrize(
    ("traces", "said"),
    [
        ((KEEPS, KEEPS), "keeps all that GOOD's contract promises"),
        (("", LOSES), "can't be recorded: it exited with code 3: no data"),
        ((f"{KEEPS} $TARGET; false", LOSES), "can't be recorded: it exited with code 1"),
        ((KEEPS, ""), "can't be judged: it exited with code 3: no data"),
    ],
)
def test_both_ends_are_checked_first(
    project: Project, capfd: pytest.CaptureFixture[str], traces: tuple[str, str], said: str
) -> None:
    good, _ = (project.records(trace) if trace else project.commit("echo no data; exit 3") for trace in traces)
    for _ in range(2):
        assert project.bisect(good, "main") == 2
        assert said in capfd.readouterr().err


def test_commits_that_have_no_order_are_refused(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    first, second = project.records(KEEPS), project.records(LOSES)
    project.git("checkout", "-q", "-b", "other", first)
    third = project.records(LOSES, "other")
    for ends, said in (
        ((second, first), "comes before GOOD"),
        ((third, "main"), f"Both come after {first[:12]}"),
        (("main", "main"), "the same commit"),
        (("main", "--upload-pack=x"), "unrecognized"),
        (("main", "nothing"), "git knows no such commit"),
    ):
        assert project.bisect(*ends) == 2
        assert said in capfd.readouterr().err
    assert project.recordings == 0


def test_a_shallow_clone_says_what_it_lacks(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    good = project.records(KEEPS)
    project.records(LOSES)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{project.top}", str(clone)], check=True)
    monkeypatch.chdir(clone)
    assert project.bisect(good, "HEAD") == 2
    assert "git fetch --unshallow" in capfd.readouterr().err


def test_a_program_that_hangs_is_ended_and_one_that_prints_much_is_read(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    good = project.records(KEEPS)
    hangs = project.commit("sleep 600 & sleep 600")
    bad = project.commit(f'head -c 30000000 /dev/zero; cp {LOSES} "$TARGET"')
    assert project.bisect(good, "main", "--timeout", "2s") == 1
    shown = capfd.readouterr().err
    assert f"{hangs[:10]} skipped: it took too long" in shown and f"{bad[:10]} bad" in shown


def test_each_commit_begins_with_its_own_files_and_setup(project: Project) -> None:
    """Files of an earlier commit's run would be found by the next."""
    script = 'test ! -e made && touch made && test -e data && cp {} "$TARGET"'
    good = project.commit(script.format(KEEPS))
    project.commit(script.format(LOSES))
    (project.top / "data").write_text("untracked")
    assert project.bisect(good, "main", "--setup", f"ln -s {project.top}/data .") == 0


def test_a_script_that_early_commits_lack_is_named(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    project.records(KEEPS)
    project.git("mv", "train.py", "old.py")
    project.git("commit", "-q", "-m", "move")
    project.records(LOSES)
    assert project.bisect("HEAD~", "main") == 2
    assert "train.py is not in this commit; --setup can copy it" in capfd.readouterr().err


def test_a_longer_step_is_found_by_time(project: Project, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    traces = [tmp_path / f"{ms}.json.gz" for ms in (50, 51, 60)]
    for trace, ms in zip(traces, (50, 51, 60), strict=True):
        with_plain_steps(Path(KEEPS), trace, ms * 1_000_000)
    good = project.records(str(traces[0]))
    project.records(str(traces[1]))
    lost = project.records(str(traces[2]))
    project.records(str(traces[2]))
    assert project.bisect(good, "main", "--by", "step-time") == 0
    assert f"{lost[:10]} is the first that has steps as long" in capfd.readouterr().out
    assert project.bisect(good, "HEAD~2", "--by", "step-time") == 2
    assert "not longer than GOOD's by more than noise" in capfd.readouterr().err


def test_submodules_are_those_of_the_commit(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COUNT", "1"), ("KEY_0", "protocol.file.allow"), ("VALUE_0", "always")):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    other = tmp_path / "other"
    other.mkdir()
    for trace in (KEEPS, LOSES):
        (other / "trace").write_text(trace)
        script = "git init -q; git add -A; git -c user.name=a -c user.email=a@b commit -qm x"
        subprocess.run(["sh", "-c", script], cwd=other, check=True)
        if trace == KEEPS:
            project.git("submodule", "--quiet", "add", str(other), "part")
            good = project.commit('cp "$(cat part/trace)" "$TARGET"')
    project.git("-C", "part", "pull", "-q")
    project.commit('cp "$(cat part/trace)" "$TARGET"')
    assert project.bisect(good, "main") == 0


def test_a_folder_that_early_commits_do_not_have_is_skipped(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    project.records(KEEPS)
    folder = project.top / "later"
    folder.mkdir()
    (folder / "train.py").write_text(f'cp {LOSES} "$TARGET"')
    project.records(LOSES)
    monkeypatch.chdir(folder)
    assert project.bisect("HEAD~", "main") == 2
    assert "its directory is not in this commit" in capfd.readouterr().err


def test_python_imports_the_modules_of_the_commit(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.top / "src").mkdir()
    (project.top / "src" / "package.py").write_text("")
    commit = project.records(KEEPS)
    (project.top / "notes").mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{project.top}/src:/elsewhere:{project.top}/notes")
    repository, tree = BisectedRepository(project.top), Path("/tree")
    values = variables(program(["python", "train.py"], "", repository), repository, tree, [commit])
    places = values["PYTHONPATH"].split(os.pathsep)
    assert places[:3] == ["/tree/src", "/elsewhere", f"{project.top}/notes"]


def test_a_script_is_that_of_the_commit(project: Project) -> None:
    project.records(KEEPS)
    repository = BisectedRepository(project.top)
    named = program(["python", "-u", "-X", "dev", str(project.top / "train.py"), "-m", "x"], "", repository)
    assert (named.options, named.words) == (("-u", "-X", "dev"), ("train.py", "-m", "x"))
    assert program(["train.py"], "", repository).words == ("train.py",)
    assert program(["python3", "-m", "pkg.train"], "", repository).words == ("-m", "pkg.train")


def test_git_looks_at_the_repository_here(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks set GIT_DIR."""
    commit = project.records(KEEPS)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert BisectedRepository(project.top).commit("main").id == commit
