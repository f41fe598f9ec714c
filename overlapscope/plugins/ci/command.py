"""`overlapscope ci`."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.base.output import tell, write_output
from overlapscope.base.words import clean, plural
from overlapscope.commands import DONE, main
from overlapscope.commands._options import add_actions
from overlapscope.commands._output import make_directory, write, write_file
from overlapscope.errors import UsageError
from overlapscope.version import __version__

if TYPE_CHECKING:
    from overlapscope.plugins.ci.repository import System, TeamRepository
    from overlapscope.plugins.ci.setup import SetupChoice, SetupPlan
    from overlapscope.trace.model import Trace

_SYSTEMS = ("github", "gitlab", "pytest")
_REPOSITORY = "https://github.com/overlapscope/overlapscope"
_LABEL = re.compile(r"\w[\w .=/-]*")


class CiCommand:
    """Set up `overlapscope check` in CI, and keep its comment on a pull request
    up to date.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        action = add_actions(parser)
        init = action(
            "init",
            "write limits, a contract, and a workflow, pipeline or test that checks every change",
            "The last recording is taken for good: what holds today must go on holding. Existing files are kept, so "
            "calling it again changes nothing. At the end the recording is checked once.",
        )
        init.add_argument(
            "trace",
            metavar="TRACE",
            nargs="?",
            type=Path,
            help="recording of `overlapscope run`, or directory with those of several ranks (default: the newest "
            "*.trace.json.gz of the project)",
        )
        init.add_argument("-y", "--yes", action="store_true", help="write without asking")
        init.add_argument(
            "--for", dest="system", choices=_SYSTEMS, help="what runs the check (default: what the repository uses)"
        )
        where = init.add_mutually_exclusive_group()
        where.add_argument(
            "--runner",
            metavar="LABELS",
            help="runner with a GPU that records each change, such as 'self-hosted, gpu' (default: as other jobs have)",
        )
        where.add_argument(
            "--stored", action="store_true", help="check the recording in the repository, on a runner without a GPU"
        )
        init.add_argument(
            "--program",
            metavar="ARGUMENTS",
            help="script and arguments to record there, such as 'train.py --steps 60' (default: the recorded script)",
        )
        init.add_argument(
            "--install",
            metavar="REQUIREMENT",
            help="overlapscope as pip installs it in the job (default: from where it was installed here)",
        )
        comment = action(
            "comment",
            "write the comment of a check, and keep it on the pull request or merge request",
            "In GitHub Actions and GitLab CI, the comment replaces the one that this command has made before. "
            "Elsewhere it is printed.",
        )
        comment.add_argument("traces", metavar="TRACE", nargs="+", help="recordings that were checked")
        comment.add_argument(
            "--check", metavar="FILE", type=Path, required=True, help="result of `overlapscope check --format json`"
        )
        comment.add_argument("--before", metavar="TRACE", help="recording of the base branch, if there is one")
        comment.add_argument("--picture", metavar="FILE", type=Path, help="PNG to write, of the step before and after")
        comment.add_argument(
            "--name", default="overlapscope", help="name that sets several comments apart (default: overlapscope)"
        )
        comment.add_argument("-o", "--output", metavar="FILE", type=Path, help="write the comment to FILE alone")

    def run(self, args: argparse.Namespace) -> int:
        return _init(args) if args.action == "init" else _comment(args)


# -- init ---------------------------------------------------------------------------------------------


def _init(args: argparse.Namespace) -> int:
    from overlapscope.analysis import analyze_trace
    from overlapscope.inputs import read_recordings
    from overlapscope.plugins.ci.repository import repository_of
    from overlapscope.plugins.ci.setup import plan
    from overlapscope.report.model import build

    repository = repository_of(Path.cwd())
    path = _recording(args.trace, repository)
    traces = read_recordings([path])
    choice = _choice(args, repository, path, traces)
    todo = plan(repository, choice, traces, build(map(analyze_trace, traces), replayed=False))
    for line in _shown(repository, choice, todo):
        write_output(f"{clean(line)}\n".encode("utf-8", "replace"))
    if todo.files:
        _confirm(args, len(todo.files))
    for file in todo.files:
        make_directory(file.path.parent)
        write_file([file.content.encode()], file.path, force=file.before is not None)
    tell("")
    code = main(["check", str(path), *(option for limit in todo.limits for option in ("--budget", limit.budget.title))])
    tell("")
    for line in _next(choice, todo, code):
        tell(line)
    return code


def _recording(named: Path | None, repository: TeamRepository) -> Path:
    """Return the recording. Raises UsageError if there is none, or if it isn't in the project."""
    found = repository.recordings() if named is None else [named]
    if not found:
        raise UsageError(
            f"{repository.project}: there is no recording (*.trace.json.gz). Record the program first, where there "
            "is a GPU: `overlapscope run --active 20 train.py`, then run this again."
        )
    # git keeps a link without its file, and nothing outside of the repository.
    path = Path(os.path.realpath(found[0]))
    if not path.is_relative_to(repository.project):
        raise UsageError(f"{path}: is outside of the project {repository.project}; copy it there.")
    return path


def _choice(args: argparse.Namespace, repository: TeamRepository, path: Path, traces: list[Trace]) -> SetupChoice:
    from overlapscope.plugins.ci.setup import SetupChoice

    system: System | None = args.system or repository.system()
    runner = None if args.stored or system == "pytest" else repository.gpu_runner(system)
    if args.runner is not None:
        labels = [label.strip() for label in args.runner.strip("[] ").split(",")]
        if not all(map(_LABEL.fullmatch, labels)):
            raise UsageError(f"--runner {args.runner!r}: name labels with commas between, such as 'self-hosted, gpu'.")
        runner = f"[{', '.join(labels)}]"
    if args.runner is not None and system not in ("github", "gitlab"):
        raise UsageError("--runner needs --for github or --for gitlab.")
    if runner is not None and path.is_dir():
        raise UsageError(
            f"{path}: has several ranks, and how to start them is unknown; pass --stored, and record them in a job of "
            "your own by `torchrun ... -m overlapscope run`."
        )
    return SetupChoice(
        trace=path,
        system=system,
        runner=runner,
        program=None if runner is None else args.program or _program(repository, traces),
        stacks=any(len(trace.python_frames.start_ns) for trace in traces),
        install=shlex.quote(args.install or _requirement()),
    )


def _program(repository: TeamRepository, traces: list[Trace]) -> str:
    """Return the path of the recorded script, for a shell. Raises UsageError unless there is exactly one."""
    job = next((trace.origin.job for trace in traces if trace.origin is not None and trace.origin.job), None)
    scripts = repository.scripts(job) if job else []
    if len(scripts) != 1:
        reason = f"{len(scripts)} files are named {job}" if job else "the recording doesn't state it"
        raise UsageError(f"which script to record is unknown ({reason}); pass --program 'train.py --steps 60'.")
    return shlex.quote(scripts[0].relative_to(repository.project).as_posix())


def _requirement() -> str:
    """Return overlapscope as pip installed it here (PEP 610); for a checkout, the version's tag in the repository."""
    with suppress(metadata.PackageNotFoundError):
        origin = json.loads(metadata.distribution("overlapscope").read_text("direct_url.json") or "{}")
        url, repository = str(origin.get("url", "file:")), origin.get("vcs_info")
        if repository:
            return f"overlapscope @ {repository['vcs']}+{url}@{repository['commit_id']}"
        if origin:
            tag = f"git+{_REPOSITORY}@v{__version__}"
            return f"overlapscope @ {tag if url.startswith('file:') else url}"
    return f"overlapscope=={__version__}"


def _shown(repository: TeamRepository, choice: SetupChoice, todo: SetupPlan) -> list[str]:
    """Return the lines that show the files to write, and the kept ones."""
    place = {
        "github": "a GitHub workflow",
        "gitlab": "a GitLab pipeline",
        "pytest": "a test of pytest",
        None: "a configuration",
    }
    source = "the stored recording" if choice.runner is None else f"a recording on {choice.runner} of {choice.program}"
    trace = choice.trace.relative_to(repository.root).as_posix()
    lines = [f"Set up {place[choice.system]} that checks {source}. Limits are of {trace}.", ""]
    for file in todo.files:
        lines += [*file.diff(repository.root), ""]
    lines += [f"Kept as it is: {path.relative_to(repository.root).as_posix()}" for path in todo.kept]
    return [*lines, *todo.notes]


def _confirm(args: argparse.Namespace, count: int) -> None:
    """Ask the user, unless `--yes` was passed. Raises UsageError after a no, and without a terminal."""
    if args.yes:
        return
    files = plural(count, "file")
    if not (sys.stdin and sys.stdin.isatty()):
        raise UsageError(f"nothing was written, without a terminal to ask on; pass --yes to write {files}.")
    print(f"Write {'this file' if count == 1 else f'these {files}'}? [Y/n] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("", "y", "yes"):
        raise UsageError("nothing was written.")


def _next(choice: SetupChoice, todo: SetupPlan, code: int) -> list[str]:
    """Return the next steps of the user, in sentences."""
    if not todo.files:
        return ["Nothing was written, because everything is there."]
    stored = [os.path.relpath(choice.trace)] if choice.runner is None else []
    add = shlex.join(["git", "add", "--force", *(os.path.relpath(file.path) for file in todo.files), *stored])
    lines = [f"Next: `{add}`, commit and push."]
    if code:
        lines[:0] = ["The check doesn't pass yet: follow its advice, or change the limits."]
    if choice.system in ("github", "gitlab"):
        lines.append(f"The job installs {choice.install}: see that its runner can, or edit that line.")
    if choice.system == "github":
        lines.append("Comments appear once the workflows are on the default branch.")
    if choice.system == "gitlab":
        lines.append(
            "Comments need a CI/CD variable OVERLAPSCOPE_GITLAB_TOKEN: a project access token with the scope api."
        )
    if choice.system == "pytest":
        lines.append("`pytest` checks it from now on.")
    if choice.system is None:
        lines.append(f"Have your CI run `{shlex.join(['overlapscope', 'check', *(stored or ['TRACE'])])}`.")
    if choice.runner is None:
        lines.append("Record the program again when it changes, and commit that: the check judges what is stored.")
    return lines


# -- comment ------------------------------------------------------------------------------------------


def _comment(args: argparse.Namespace) -> int:
    from overlapscope.plugins.ci import comment, forge

    place = None if args.output is not None else forge.of_job(args.name)
    job = comment.CommentedJob() if place is None else place.job
    text, picture = comment.write(args.traces, args.check, args.before, args.name, job)
    if picture is not None and args.picture is not None:
        write(picture, args.picture, force=True)
    if place is None:
        write(text.encode("utf-8", "replace"), args.output, force=True)
        return DONE
    for sentence in place.keep(text, comment.marker(args.name)):
        tell(sentence)
    return DONE
