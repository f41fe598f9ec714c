"""Files that hold a program's overlap in CI: limits, a contract, and a job or a test that checks a recording by them.

The files of `templates` have names such as `<TRACE>` in the place of values, and before lines that need one `<?TESTS>`.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import sqrt
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Final, NamedTuple

from overlapscope.base.config_file import CONTRACT, FILE, find, find_contract
from overlapscope.base.words import clean, listed
from overlapscope.budgets.places import JudgedFigure, figures
from overlapscope.budgets.quantity import exact, show
from overlapscope.budgets.settings import Budget, LimitKind, Scope
from overlapscope.contracts.model import DEFAULT_MARGIN_PCT
from overlapscope.errors import UsageError
from overlapscope.plugins.ci.repository import System, TeamRepository

if TYPE_CHECKING:
    from overlapscope.report.model import Report
    from overlapscope.trace.model import Trace

_TEMPLATES: Final = Path(__file__).parent / "templates"
_PLACE: Final = re.compile(r"<([A-Z_]+)>")
_OPTIONAL: Final = re.compile(r"^<\?([A-Z_]+)>(.*\n)", re.MULTILINE)
_PIPELINE: Final = ".gitlab-ci.yml"
_NAME: Final = re.compile(r"[\w.][\w./+=@,-]*")
"""A path that is text for shells, for YAML and for patterns of paths, and no option of a command."""
_STAGES: Final = re.compile(r"^stages: *(?:#.*)?(\[[^\]]*\]|(?:\n *- .*)+)", re.MULTILINE)
_MOST_LINES: Final = 70
"""Maximum number of lines of a new file to show."""


ARGUMENTS: Final = {
    "efficiency_pct": "min_efficiency",
    "exposed_copy_time": "max_exposed_copy",
    "exposed_comm_time": "max_exposed_comm",
    "idle_pct": "max_idle",
    "launches_per_step": "",
    "host_loading_pct": "",
}
"""Limited metrics, each with its argument of `pytest_plugin.overlap`; empty if it has none.

Step times depend on the machine, and have no limit.
"""
_ERRORS: Final = 3
"""Number of standard errors of the mean that a limit leaves for steps that differ."""
_DIGITS: Final = 2


class SetupChoice(NamedTuple):
    """Choices about the check: the recording, its origin, and the system that runs the job."""

    trace: Path
    system: System | None
    runner: str | None
    """Labels of the runner with a GPU that records, as YAML; None if the recording lies in the repository."""
    program: str | None
    """Script and arguments to record on that runner."""
    stacks: bool
    """True if the recording has Python stacks."""
    install: str
    """Requirement that pip installs in the job, quoted for a shell."""


class NewFile(NamedTuple):
    """A file to write."""

    path: Path
    content: str
    before: str | None = None
    """Content of the existing file; None if there is none."""

    def diff(self, root: Path) -> Iterator[str]:
        """Yield the lines of a diff. Long files are cut."""
        name = self.path.relative_to(root).as_posix()
        old = "/dev/null" if self.before is None else name
        sides = (self.before or "").splitlines(), self.content.splitlines()
        lines = list(difflib.unified_diff(*sides, old, name, lineterm=""))
        yield from lines[:_MOST_LINES]
        if len(lines) > _MOST_LINES:
            yield f"... and {len(lines) - _MOST_LINES:,} more lines"


class Limit(NamedTuple):
    """A limit of a metric."""

    budget: Budget
    """The limit. Its scope is the window if the recording has no steps."""
    today: str
    """Value of the recording, on the worst device."""

    @property
    def bound(self) -> str:
        """The limit with its unit."""
        return exact(self.budget.bound, self.budget.what.unit)

    @property
    def line(self) -> str:
        """The limit as a line of `[budgets]`."""
        scope = ', scope = "window"' if self.budget.scope == "window" else ""
        bound = f'{self.budget.metric} = {{ {self.budget.limit} = "{self.bound}"{scope} }}'
        return f"{bound}  # {self.today} in the recording"


class SetupPlan(NamedTuple):
    """Files to write and to keep, and notes for the user."""

    files: tuple[NewFile, ...]
    kept: tuple[Path, ...]
    """Existing files that stay as they are."""
    notes: tuple[str, ...]
    limits: tuple[Limit, ...]
    """Limits that stand in no configuration but in a test."""


def plan(repository: TeamRepository, choice: SetupChoice, traces: list[Trace], report: Report) -> SetupPlan:
    """Return what to write. Existing files are kept, so that a second call finds nothing to write.

    Raises:
        UsageError: A value can't stand in a workflow, or a file can't have its place.
        ConfigError: The existing configuration can't be read.
    """
    files: list[NewFile] = []
    kept: list[Path] = []
    notes: list[str] = []
    limits = tuple(limits_of(report))
    config, contract = find(repository.project), find_contract(repository.project)
    content = None if config is not None else _configuration(choice, limits, report)
    promised = None
    if contract is None:
        promised, reason = _contract(traces, report)
        notes += [reason] if reason else []
    for existing, name, text in ((config, FILE, content), (contract, CONTRACT, promised)):
        if existing is not None:
            kept.append(existing)
        elif text is not None and not (name == FILE and choice.system == "pytest"):
            files.append(NewFile(repository.project / name, text))
    has_contract = promised is not None or contract == repository.project / CONTRACT
    for file in _jobs(repository, choice, limits, has_contract=has_contract):
        if file.before is None and file.path.exists():
            if "overlapscope" not in file.path.read_text(encoding="utf-8", errors="replace"):
                raise UsageError(f"{file.path}: has the name of the file to write; rename it, then run this again.")
            kept.append(file.path)
        elif file.content != file.before:
            files.append(file)
    for file in files:
        if not Path(os.path.realpath(file.path)).is_relative_to(os.path.realpath(repository.root)):
            raise UsageError(f"{file.path}: a link leads out of the repository; replace it, then run this again.")
    return SetupPlan(
        tuple(files), tuple(kept), tuple(notes), limits if choice.system == "pytest" and not config else ()
    )


def _configuration(choice: SetupChoice, limits: tuple[Limit, ...], report: Report) -> str:
    """Return the content of an `overlapscope.toml`."""
    gpus = listed(sorted({clean(gpu, 60) for trace in report.traces for gpu in trace.environment.gpus}))
    lines = [
        f"# Limits of `overlapscope check`. {clean(choice.trace.name)}{f' of {gpus}' if gpus else ''} keeps them, with",
        "# room for the noise between two recordings of one program. Edit them as you like.",
        "[budgets]",
        *(limit.line for limit in limits),
    ]
    return "".join(f"{line}\n" for line in lines)


def _contract(traces: list[Trace], report: Report) -> tuple[str | None, str]:
    """Return the contract that the recording keeps; None, with the reason, if a check by it would not pass."""
    from overlapscope.contracts.judge import judge, promise
    from overlapscope.contracts.model import from_toml, to_toml

    first = min(traces, key=lambda trace: trace.rank or 0)
    try:
        text = to_toml(promise(first))
    except UsageError as error:
        return None, f"No contract is written: {error}"
    contract, results = from_toml(text, CONTRACT), {result.source: result for result in report.traces}
    promises = [each for trace in traces for each in judge(contract, trace, results[trace.source])[1]]
    for result in ("lost", "unknown"):
        for broken in (each for each in promises if each.result == result):
            return None, f"No contract is written: {clean(broken.message, 500)}"
    return text, ""


# -- Limits -----------------------------------------------------------------------------------------


def limits_of(report: Report) -> Iterator[Limit]:
    """Yield a limit for each metric of `ARGUMENTS` that the report states of every device.

    Limits that nothing exceeds are left out.
    """
    places = len(report.devices) or len(report.traces)
    stated: dict[str, list[JudgedFigure]] = {}
    for figure in figures(report):
        if figure.metric.metric in ARGUMENTS:
            stated.setdefault(figure.metric.metric, []).append(figure)
    for each in stated.values():
        metric = each[0].metric
        sign = -1 if metric.more_is_better else 1
        worst = max(each, key=lambda figure: sign * figure.value + _room(figure))
        bound = _outward(worst.value + sign * _room(worst), up=not metric.more_is_better)
        if len(each) < places or bound <= 0 or (metric.unit == "pct" and bound >= 100):
            continue
        kind: LimitKind = "min" if metric.more_is_better else "max"
        scope: Scope = "window" if worst.place.subject.scope == "window" else "steps"
        budget = Budget(metric=metric.metric, limit=kind, bound=bound, scope=scope)
        yield Limit(budget, show(worst.value, metric.unit))


def _room(figure: JudgedFigure) -> float:
    """Return the noise floor between recordings, plus the part of the mean that depends on which steps were judged."""
    values = figure.values.numbers
    error = stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0
    if figure.metric.unit == "launches":
        # They have no noise, but batches of other sizes may launch a few more.
        return DEFAULT_MARGIN_PCT / 100 * figure.value
    return figure.noise_floor + _ERRORS * error


def _outward(value: float, *, up: bool) -> float:
    """Return a value with two digits, rounded away from what passes today."""
    context = Context(prec=_DIGITS, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    return float(context.create_decimal(Decimal(repr(value))))


# -- Jobs and tests ---------------------------------------------------------------------------------


def _jobs(
    repository: TeamRepository, choice: SetupChoice, limits: tuple[Limit, ...], *, has_contract: bool
) -> Iterator[NewFile]:
    """Yield the workflows, the pipeline or the test."""
    values = _values(repository, choice)
    kind = "stored" if choice.runner is None else "gpu"
    match choice.system:
        case "github":
            workflows = repository.root / ".github" / "workflows"
            base = _filled("github-base.yml", values) if choice.runner else ""
            yield NewFile(workflows / values["FILE"], _filled(f"github-{kind}.yml", values))
            comment = _filled("github-comment.yml", values | {"BASE": base.rstrip("\n")})
            yield NewFile(workflows / f"{values['NAME']}-comment.yml", comment)
        case "gitlab":
            yield NewFile(repository.root / ".gitlab" / values["FILE"], _filled(f"gitlab-{kind}.yml", values))
            pipeline = repository.root / _PIPELINE
            try:
                before = pipeline.read_bytes().decode() if pipeline.is_file() else None
            except UnicodeDecodeError:
                raise UsageError(f"{pipeline}: is not UTF-8 text; repair it, then run this again.") from None
            yield NewFile(pipeline, _including(before or "", f".gitlab/{values['FILE']}"), before)
        case "pytest":
            arguments = [f'contract=PROJECT / "{CONTRACT}"'] if has_contract else []
            kept = [limit for limit in limits if ARGUMENTS[limit.budget.metric]]
            arguments += [f'{ARGUMENTS[limit.budget.metric]}="{limit.bound}"' for limit in kept]
            arguments += ['scope="window"'] if any(limit.budget.scope == "window" for limit in kept) else []
            filled = values | {"LIMITS": "".join(f"\n        {argument}," for argument in arguments)}
            yield NewFile(_tests_of(repository) / "test_overlap.py", _filled("test_overlap.py.txt", filled))


def _tests_of(repository: TeamRepository) -> Path:
    """Return the directory of the project's tests."""
    first = min(repository.tests(), key=lambda path: (len(path.parts), path), default=None)
    return repository.project / "tests" if first is None else first.parent


def _including(pipeline: str, file: str) -> str:
    """Return a pipeline of GitLab that includes a file.

    Raises:
        UsageError: Its list of included files isn't one with an entry per line.
    """
    entry = f"  - local: {file}\n"
    if file in pipeline:
        return pipeline
    if not re.search(r"^include\b", pipeline, re.MULTILINE):
        return f"{pipeline}{'' if pipeline.endswith(chr(10)) or not pipeline else chr(10)}include:\n{entry}"
    started = re.search(r"^include: *(?:#.*)?\n(?=( *)- )", pipeline, re.MULTILINE)
    if started is None:
        raise UsageError(f"{_PIPELINE}: add `- local: {file}` to its `include`, then run this again.")
    return f"{pipeline[: started.end()]}{started[1]}{entry.lstrip()}{pipeline[started.end() :]}"


def _values(repository: TeamRepository, choice: SetupChoice) -> dict[str, str]:
    """Return the values of the templates.

    Raises:
        UsageError: One of them can't stand in a workflow.
    """
    prefix = repository.prefix
    trace = choice.trace.relative_to(repository.project).as_posix()
    for value in (f"{prefix}{trace}", choice.program or "", choice.install, choice.runner or ""):
        if not value.isprintable() or "${{" in value:
            raise UsageError(f"{clean(value)}: can't stand in a workflow, because of its characters; use another name.")
    if not all(map(_NAME.fullmatch, (f"{prefix}{trace}", trace))):
        raise UsageError(
            f"{prefix}{trace}: rename it, so that it has only letters, digits and ./_-+=@, and begins with a letter or "
            "a digit."
        )
    name = "overlapscope" + "".join(f"-{re.sub(r'[^a-zA-Z0-9]+', '-', part)}" for part in prefix.split("/") if part)
    # An artifact has no directories above its files.
    within = "" if choice.trace.is_dir() else f"/{choice.trace.name}"
    stage = _stage(repository) if choice.system == "gitlab" else None
    tests = (path.relative_to(repository.project).as_posix() for path in repository.recording_tests())
    return {
        "NAME": name,
        "FILE": f"{name}.yml",
        "TRACE": trace,
        "PREFIX": prefix,
        "FOLDER": prefix.rstrip("/"),
        "STAGE": _quoted(stage) if stage else "",
        "RECORDED": f"pull-request{within}",
        "BEFORE": "$TRACE" if choice.runner is None else f"base{within}",
        "BRANCH": _quoted(repository.default_branch()),
        "RUNNER": choice.runner or "",
        "PROGRAM": choice.program or "",
        "STACKS": " --stacks" if choice.stacks else "",
        "INSTALL": choice.install,
        "REQUIREMENTS": repository.requirements() or "",
        "TESTS": shlex.join(tests),
        "UP": str(len(_tests_of(repository).relative_to(repository.project).parts)),
    }


def _stage(repository: TeamRepository) -> str | None:
    """Return the stage of GitLab's job; None if the pipeline has the stage `test`, which jobs have by default."""
    stages = _STAGES.search(repository.text(_PIPELINE))
    names = [name.strip(" -'\"") for name in re.split(r"[,\n]", stages[1].strip("[]\n"))] if stages else ["test"]
    return None if "test" in names else names[0]


def _quoted(text: str) -> str:
    """Return a text as a scalar of YAML."""
    return "'" + text.replace("'", "''") + "'"


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Return a template with its values, without the lines of empty ones: those that begin with `<?NAME>`."""
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    text = _OPTIONAL.sub(lambda match: match[2] if values[match[1]] else "", text)
    return _PLACE.sub(lambda match: values[match[1]], text)
