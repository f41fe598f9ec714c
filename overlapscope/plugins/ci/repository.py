"""Facts about a repository that decide how its overlap is checked, read from its files without starting a program."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

System = Literal["github", "gitlab", "pytest"]

_SKIPPED: Final = ("node_modules", "site-packages", "venv", "env", "build", "dist", "__pycache__")
_MAX_FILES: Final = 5_000
"""Maximum number of files to look at."""
_MAX_BYTES: Final = 1 << 20
_RECORDINGS: Final = ("*.trace.json.gz", "*/*.trace.json.gz")
_JOB_OF_RANKS: Final = ".traces"
"""Ending of directories in which `overlapscope run` leaves the recordings of several ranks."""
_RUNS_ON: Final = re.compile(r"^\s+runs-on: *(\[[\w ,.'\"-]+\]|[\w.-]+) *(?:#.*)?$", re.MULTILINE)
_TAGS: Final = re.compile(r"^\s+tags: *(?:(\[[\w ,.'\"-]+\])|\n((?:\s+- *[\w.'\"-]+ *\n)+))", re.MULTILINE)
_OF_GPU: Final = re.compile(
    r"gpu|cuda|nvidia|rocm|\b(?:a10g?|a100|b200|h100|h200|l4|l40s?|mi300x?|t4|v100)\b", re.IGNORECASE
)
_RECORDING_TEST: Final = re.compile(r"\bmark\.overlap\b|\boverlap_profile\b")


class TeamRepository(NamedTuple):
    """A repository, and the project in it whose overlap is checked."""

    root: Path
    project: Path
    """The nearest directory with a pyproject.toml; without any, the current directory."""

    @property
    def prefix(self) -> str:
        """Path of the project below the root that ends in a slash; empty if it is the root."""
        below = self.project.relative_to(self.root).as_posix()
        return "" if below == "." else f"{below}/"

    @property
    def _git(self) -> Path:
        """Directory of git that all worktrees share; a worktree's `.git` is a file that names its own directory."""
        place = self.root / ".git"
        named = re.fullmatch(r"gitdir: (.+)\n?", _text(place))
        worktree = self.root / named[1] if named else place
        return worktree / _text(worktree / "commondir").strip()

    def text(self, name: str) -> str:
        """Return the beginning of a text file below the root; empty if it can't be read."""
        return _text(self.root / name)

    def system(self) -> System | None:
        """Return what runs the checks: GitHub or GitLab, by their files or by the remote, else pytest."""
        if (self.root / ".github" / "workflows").is_dir():
            return "github"
        if (self.root / ".gitlab-ci.yml").is_file():
            return "gitlab"
        remotes = _text(self._git / "config")
        of_remote = re.search(r"^\s*url *= *\S*?(github|gitlab)", remotes, re.MULTILINE | re.IGNORECASE)
        if of_remote:
            return "github" if of_remote[1].lower() == "github" else "gitlab"
        return "pytest" if any(self.tests()) else None

    def default_branch(self) -> str:
        """Return the branch that the remote's HEAD names; without any, `master` if it is there alone, else `main`."""
        git = self._git
        head = re.fullmatch(r"ref: refs/remotes/origin/(\S+)\s*", _text(git / "refs/remotes/origin/HEAD"))
        if head:
            return head[1]
        packed = _text(git / "packed-refs").split()
        main, master = (
            f"refs/heads/{name}" in packed or (git / "refs/heads" / name).is_file() for name in ("main", "master")
        )
        return "master" if master and not main else "main"

    def gpu_runner(self, system: System | None) -> str | None:
        """Return the labels of a runner with a GPU that another job of the repository has, as YAML."""
        if system == "github":
            texts = map(_text, sorted((self.root / ".github" / "workflows").glob("*.y*ml")))
            found = [match[1] for text in texts for match in _RUNS_ON.finditer(text)]
        elif system == "gitlab":
            found = [
                match[1] or f"[{', '.join(tag.strip(' -') for tag in match[2].splitlines())}]"
                for match in _TAGS.finditer(self.text(".gitlab-ci.yml"))
            ]
        else:
            found = []
        return next(filter(_OF_GPU.search, found), None)

    def recordings(self) -> list[Path]:
        """Return recordings of `overlapscope run`, or directories with those of several ranks, the newest first."""
        dated: dict[Path, int] = {}
        for path in (path for pattern in _RECORDINGS for path in self.project.glob(pattern)):
            relative = path.relative_to(self.project)
            if not relative.parts[0].startswith("."):
                job = path.parent if path.parent.name.endswith(_JOB_OF_RANKS) else path
                dated[job] = max(dated.get(job, 0), path.stat().st_mtime_ns)
        return sorted(dated, key=lambda path: (-dated[path], path))

    def scripts(self, name: str) -> list[Path]:
        """Return the files of the project with this name."""
        return [path for path in self._files() if path.name == name]

    def tests(self) -> Iterator[Path]:
        """Yield the test files of the project."""
        for path in self._files():
            if path.suffix == ".py" and (path.name.startswith("test_") or path.name.endswith("_test.py")):
                yield path

    def recording_tests(self) -> list[Path]:
        """Return the test files that record with the pytest plugin."""
        return [path for path in self.tests() if _RECORDING_TEST.search(_text(path))]

    def requirements(self) -> str | None:
        """Return the arguments of `pip install` for the packages that the program needs; None if unknown."""
        if (self.project / "requirements.txt").is_file():
            return "-r requirements.txt"
        return "-e ." if "\n[project]" in f"\n{_text(self.project / 'pyproject.toml')}" else None

    def _files(self) -> Iterator[Path]:
        seen = 0
        for directory, folders, names in os.walk(self.project):
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
            for name in sorted(names):
                yield Path(directory, name)
            seen += len(names)
            if seen > _MAX_FILES:
                return


def repository_of(directory: Path) -> TeamRepository:
    """Return the repository of a directory, which is its own repository if none is above it."""
    above = (directory, *directory.parents)
    root = next((path for path in above if os.path.lexists(path / ".git")), directory)
    within = above[: above.index(root) + 1]
    project = next((path for path in within if (path / "pyproject.toml").is_file()), directory)
    return TeamRepository(root, project)


def _text(path: Path) -> str:
    """Return the beginning of a text file; empty if it can't be read."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read(_MAX_BYTES).decode("utf-8", "replace")
    return ""
