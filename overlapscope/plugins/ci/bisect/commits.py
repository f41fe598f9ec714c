"""The commits of a repository, searched by `git bisect` in a worktree of its own.

The user's working tree, index and branches stay as they are, and no hook runs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from overlapscope.errors import UsageError
from overlapscope.plugins.ci.bisect.result import BisectCandidate, Judge

_OPTIONS: Final = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "advice.detachedHead=false")
_OF_REPOSITORY: Final = re.compile(
    "GIT_(DIR|WORK_TREE|COMMON_DIR|INDEX_FILE|PREFIX|NAMESPACE|OBJECT_DIRECTORY|ALTERNATE_OBJECT_DIRECTORIES|CEILING.*)"
)
"""Variables that name a repository. Hooks have them, and they would lead git from the worktree to the user's tree."""
_FOUND = re.compile(r"^# (?:possible )?first bad commit: \[([0-9a-f]+)\]", re.MULTILINE)
_MAX_LINES: Final = 20
_FIELDS: Final = "%H%x00%an%x00%as%x00%s"


def environment() -> dict[str, str]:
    """Return the environment without the variables that name a repository."""
    return {name: value for name, value in os.environ.items() if not _OF_REPOSITORY.fullmatch(name)}


class BisectedRepository:
    """The repository around a directory.

    Raises:
        UsageError: There is none, or git fails.
    """

    def __init__(self, directory: Path) -> None:
        """Find it."""
        self._at = directory
        self.top = Path(self._git("rev-parse", "--show-toplevel"))
        self.data = Path(self._git("rev-parse", "--path-format=absolute", "--git-common-dir"))
        """Directory that all worktrees share."""
        self._at = self.top
        self.inside = Path(os.path.relpath(os.path.realpath(directory), os.path.realpath(self.top)))
        """The directory, relative to the top."""

    def _git(self, *arguments: str, at: Path | None = None) -> str:
        command = ["git", "-C", os.fspath(at or self._at), *_OPTIONS, *arguments]
        variables = environment() | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
        if at is not None:
            # If the program removes the worktree's `.git`, git must not find a repository of the user above it.
            variables["GIT_CEILING_DIRECTORIES"] = os.path.realpath(at.parent)
        try:
            done = subprocess.run(
                command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, check=False, errors="replace"
            )
        except OSError as error:
            raise UsageError(f"git can't be started ({error.strerror}); install it.") from None
        if done.returncode:
            message = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
            raise UsageError(f"git {arguments[0]}: {message.splitlines()[-1].removeprefix('fatal: ')}")
        return done.stdout.rstrip("\n")

    def commit(self, name: str) -> BisectCandidate:
        """Return the commit of a name. Raises UsageError."""
        try:
            number = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except UsageError:
            hint = " This clone is shallow; `git fetch --unshallow` gets all commits." if self._is_shallow() else ""
            raise UsageError(f"{name}: git knows no such commit.{hint}") from None
        return self.described(number.splitlines()[-1])

    def described(self, number: str) -> BisectCandidate:
        """Return a commit by its number."""
        fields = self._git("log", "-1", "--no-show-signature", f"--format={_FIELDS}", number).split("\0")
        return BisectCandidate(*fields)

    def parents(self, number: str, after: str) -> list[str]:
        """Return the parents of a commit, except those that are or come before another."""
        parents = self._git("rev-list", "--parents", "-n", "1", number).split()[1:]
        return [parent for parent in parents if not self._is_ancestor(parent, after)]

    def check_order(self, good: BisectCandidate, bad: BisectCandidate) -> None:
        """Raise UsageError unless one commit comes before the other."""
        if good.id == bad.id:
            raise UsageError(f"GOOD and BAD are the same commit, {good.short}; name two.")
        if self._is_ancestor(good.id, bad.id):
            return
        if self._is_ancestor(bad.id, good.id):
            raise UsageError(f"BAD ({bad.short}) comes before GOOD ({good.short}); swap them.")
        shallow = " This clone is shallow; `git fetch --unshallow` gets all commits." if self._is_shallow() else ""
        common = ""
        with suppress(UsageError):
            common = self._git("merge-base", good.id, bad.id)
        instead = f" Both come after {common[:12]}, which may be GOOD instead." if common else ""
        raise UsageError(f"GOOD ({good.short}) does not come before BAD ({bad.short}).{instead}{shallow}")

    def _is_ancestor(self, first: str, second: str) -> bool:
        # Commits of the first that the second doesn't have; none if the second comes after it.
        return self._git("rev-list", "--count", first, f"^{second}") == "0"

    def _is_shallow(self) -> bool:
        return self._git("rev-parse", "--is-shallow-repository") == "true"

    def is_dirty(self) -> bool:
        """Return whether tracked files have changes that are not committed."""
        return bool(self._git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no"))

    def tracks(self, path: Path, commit: str) -> bool:
        """Return whether a commit has a path, which is relative to the top."""
        return path == Path() or bool(self._git("ls-tree", "--name-only", commit, "--", path.as_posix()))

    def change(self, commit: str, path: str) -> str:
        """Return the first lines that a commit changed in a file, or in all if it left that one as it was."""
        command = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--unified=0", f"{commit}^", commit, "--")
        changed = (path and self._git(*command, (self.inside / path).as_posix())) or self._git(*command)
        lines = [line for line in changed.splitlines() if line.startswith(("@@", "+", "-")) and line[:3] != "---"]
        return "\n".join([*lines[:_MAX_LINES], *(["..."] if lines[_MAX_LINES:] else [])])

    # -- The worktree ---------------------------------------------------------------------------------

    @contextmanager
    def worktree(self, place: Path, commit: str) -> Iterator[Path]:
        """Add a worktree without files at a place, and remove it in the end."""
        self._remove(place)
        self._git("worktree", "add", "--force", "--detach", "--no-checkout", os.fspath(place), commit)
        try:
            yield place
        finally:
            self._remove(place)

    def _remove(self, place: Path) -> None:
        with suppress(UsageError):
            self._git("worktree", "remove", "--force", "--force", os.fspath(place))
        shutil.rmtree(place, ignore_errors=True)

    def check_out(self, tree: Path, commit: str) -> None:
        """Have the worktree hold exactly the files of a commit. Raises UsageError."""
        self._git("checkout", "--force", "--detach", commit, at=tree)
        self._git("clean", "-ffdxq", at=tree)
        if (tree / ".gitmodules").is_file():
            self._git("submodule", "update", "--init", "--recursive", "--force", at=tree)

    # -- The search -----------------------------------------------------------------------------------

    def first_bad(self, tree: Path, good: str, bad: str, judge: Judge) -> list[str]:
        """Return the first bad commit, or those that may be it, as `git bisect` finds them in the worktree."""
        git = partial(self._git, at=tree)
        with suppress(UsageError):
            git("bisect", "reset")
        # The search leaves the worktree's files alone.
        git("bisect", "start", "--no-checkout", bad, good)
        while not (found := _FOUND.findall(git("bisect", "log"))):
            commit = git("rev-parse", "--verify", "BISECT_HEAD")
            left = int(git("rev-list", "--count", "refs/bisect/bad", "--not", "--glob=refs/bisect/good-*"))
            verdict = judge(commit, left)
            try:
                git("bisect", "skip" if verdict == "skipped" else verdict, commit)
            except UsageError:
                # git fails if that leaves only skipped commits, which its log has then.
                if not _FOUND.search(git("bisect", "log")):
                    raise
        return found
