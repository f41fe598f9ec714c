"""`overlapscope check`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from overlapscope.base.output import tell
from overlapscope.base.registry import load
from overlapscope.base.words import did_you_mean
from overlapscope.commands import DONE
from overlapscope.commands._options import add_analysis, add_traces, add_verbose, less_common, report_of
from overlapscope.commands._output import check_output, write
from overlapscope.errors import ConfigError, UsageError
from overlapscope.plugin import built_in

if TYPE_CHECKING:
    from overlapscope.budgets.settings import Settings
    from overlapscope.budgets.verdicts import CheckResult
    from overlapscope.report.model import Report

FORMATS = ("text", "json", "junit", "github", "gitlab", "markdown", "html", "openmetrics")
_BASELINE = "overlap-baseline.json"
"""Name of a baseline without another name, beside the configuration."""


class Target(NamedTuple):
    """A format with the file to write; None for stdout."""

    format: str
    path: Path | None


class CheckCommand:
    """Check traces against a contract and budgets: report what passed, what
    failed, and why.

    A TRACE is a trace file (.json.gz, trace_view.json, .sqlite, .xplane.pb), a
    directory with the traces of several ranks, a glob pattern, or a report
    that `overlapscope analyze --format json` wrote.

    Budgets, baseline and contract are read from the nearest overlapscope.toml,
    or from [tool.overlapscope] of the nearest pyproject.toml, up to the root
    of the repository. Without any, the check fails if the report's verdict is
    poor or a finding costs 5% of the time; with only a baseline, if the
    program is slower than it. A contract (`overlapscope contract write`) adds
    what the program's order allows to overlap.

    --write-baseline writes the baseline instead: a small JSON file to keep
    beside the code, with the lengths in every step that metrics are computed
    from, and the machine and software they were measured on.

    Exit codes: 0 all budgets passed; 1 a budget failed; 2 wrong input, usage
    or configuration; 3 a budget could not be judged.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_traces(parser, reports=True, required=False)
        parser.add_argument(
            "--contract",
            metavar="FILE",
            type=Path,
            help="contract of `overlapscope contract write` (default: contract of the configuration, or "
            "overlap.contract.toml here or above in the repository)",
        )
        _add_baseline(parser)
        parser.add_argument(
            "--budget",
            metavar="BUDGET",
            action="append",
            default=[],
            help="another budget: 'efficiency_pct >= 80%%', 'p90 step_time <= 12 ms', 'step_time increase <= 5%%'",
        )
        parser.add_argument(
            "--forbid", metavar="RULE", action="append", default=[], help="fail if this rule finds something"
        )
        parser.add_argument(
            "--config",
            metavar="FILE",
            type=Path,
            help="configuration file (default: the nearest one, from here upwards)",
        )
        parser.add_argument(
            "--format",
            metavar="NAME[:PATH]",
            type=_target,
            action="append",
            default=[],
            help=f"format to print, or to write to PATH: {', '.join(FORMATS)} (default: text); may be repeated",
        )
        parser.add_argument(
            "--explain", metavar="BUDGET", help="explain one budget: how it is computed, and every value"
        )
        add_verbose(parser, "also show all reasons for a failure, with the evidence")
        rare = less_common(parser)
        for source in _baseline_sources():
            source.add_options(rare)
        rare.add_argument(
            "--fail-level",
            choices=("error", "warn"),
            default="error",
            help="fail on errors only (default), or on warnings too",
        )
        rare.add_argument(
            "--other-program", action="store_true", help="compare even if the baseline is of another program"
        )
        add_analysis(rare)

    def run(self, args: argparse.Namespace) -> int:
        from overlapscope.base.config_file import find as find_config

        config = args.config or find_config(_here())
        settings = _settings(args, config)
        find = next(filter(None, (source.find(args) for source in _baseline_sources())), None)
        if not args.traces:
            raise UsageError("name the traces: overlapscope check TRACE.")
        from overlapscope.reading.patterns import NamePatterns, using

        with using(settings.names or NamePatterns()):
            if args.write_baseline:
                return _write_baseline(args, settings, config)
            return _check(args, settings, config, find)


class BaselineSource(Protocol):
    """A plugin's module that finds baselines."""

    def add_options(self, rare: argparse._ArgumentGroup) -> None:
        """Add its options to those that few people need."""

    def find(self, args: argparse.Namespace) -> Callable[[Report], Report] | None:
        """Return a function of the judged report that returns the one to compare with, if its options ask for it.

        Raises:
            UsageError: Options contradict each other.
        """


def _baseline_sources() -> Iterator[BaselineSource]:
    return (load(plugin.baseline) for plugin in built_in() if plugin.baseline)


def _add_baseline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--baseline",
        metavar="FILE",
        help="baseline for budgets on a change: a file of --write-baseline, a trace or a report (default: baseline of "
        "the configuration)",
    )
    parser.add_argument(
        "--write-baseline",
        action="store_true",
        help=f"write the baseline of these traces, by default to {_BASELINE} beside the configuration, and check "
        "nothing",
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite the baseline if it exists")


def _check(
    args: argparse.Namespace, settings: Settings, config: Path | None, find: Callable[[Report], Report] | None
) -> int:
    file = args.baseline
    if file is None and find is None and settings.baseline is not None:
        file = settings.baseline
        if not file.exists():
            raise UsageError(
                f"{file}: there is no such baseline, which {config} names; `overlapscope check TRACE --write-baseline` "
                "writes it."
            )
    targets = _targets(args.format, (*args.traces, file, config), explains=args.explain is not None)
    from msgspec.structs import replace

    from overlapscope.base.config_file import find_contract
    from overlapscope.contracts.judge import check_job
    from overlapscope.inputs import read_baseline, read_recordings

    def near(path: str | Path) -> str:
        """Return a path relative to the current directory if it lies in it."""
        relative = os.path.relpath(path)
        return str(path) if relative.startswith(os.pardir) else relative

    settings = replace(settings, contract=args.contract or settings.contract or find_contract(_here()))
    reading = {"limit_bytes": args.max_size, "cache": args.cache}
    report = cache(lambda: report_of(args.traces, args))
    baseline = None
    if file is not None:
        baseline = read_baseline(file, ranges=settings.compared_ranges, **reading)
    elif find is not None:
        from overlapscope.budgets.baseline import of

        baseline = of(find(report()), ranges=settings.compared_ranges)
    recordings = partial(read_recordings, args.traces, steps_by=args.steps_by, **reading)
    result = check_job(settings, recordings, report, baseline)
    result = replace(result, files=tuple(map(near, filter(None, (config, settings.contract, file)))))
    for target in targets:
        write(_written(result, target, verbose=args.verbose), target.path, force=True)
        if target.format == "github":
            _summarize(result)
    for warning in result.warnings:
        tell(f"overlapscope: warning: {warning}")
    if args.explain is not None:
        from overlapscope.budgets.check import explain
        from overlapscope.budgets.document import explanation
        from overlapscope.render import terminal

        explained = explanation(*explain(report(), settings, args.explain, baseline=baseline))
        write(terminal.to_stream(explained, sys.stdout), None)
    return result.exit_code


def _write_baseline(args: argparse.Namespace, settings: Settings, config: Path | None) -> int:
    """Write the baseline from the traces of one job, and print how later checks find it."""
    for option in ("format", "explain"):
        if getattr(args, option) not in (None, []):
            raise UsageError(f"--write-baseline checks nothing; leave out --{option}.")
    beside = Path(_BASELINE) if config is None else config.parent / _BASELINE
    file = Path(args.baseline) if args.baseline is not None else settings.baseline or beside
    check_output(file, force=args.force, inputs=(*args.traces, config))
    from overlapscope.budgets import baseline

    new = baseline.of(report_of(args.traces, args), ranges=settings.compared_ranges)
    for doubt in baseline.doubts(new):
        tell(f"overlapscope: warning: {doubt}")
    write(baseline.to_json(new), file, force=args.force)
    if args.baseline is None and settings.baseline is None:
        tell(
            f'overlapscope: `baseline = "{_BASELINE}"` in {config or "[tool.overlapscope] of pyproject.toml"} makes '
            "`overlapscope check` compare with it."
        )
    return DONE


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError:
        raise ConfigError(
            "the current directory no longer exists, so no configuration can be searched for from it."
        ) from None


def _settings(args: argparse.Namespace, path: Path | None) -> Settings:
    """Return the settings in a file, if there is one, with those of the options. Raises ConfigError."""
    from msgspec.structs import replace

    from overlapscope.budgets import config
    from overlapscope.budgets.settings import Settings

    settings = Settings() if path is None else config.read(path)
    forbidden = [config.rule_named(rule, f"--forbid {rule}") for rule in args.forbid]
    return replace(
        settings,
        budgets=(*settings.budgets, *map(config.expression, args.budget)),
        forbid=tuple(dict.fromkeys((*settings.forbid, *forbidden))),
        fail_level=args.fail_level,
        other_program=args.other_program,
    )


def _target(text: str) -> Target:
    name, colon, path = text.partition(":")
    if name not in FORMATS:
        raise argparse.ArgumentTypeError(
            f"there is no format {name!r}{did_you_mean(name, FORMATS)}; formats: {', '.join(FORMATS)}"
        )
    if colon and not path:
        raise argparse.ArgumentTypeError(f"{text!r} names no file; write {name}:PATH, or just {name} for stdout")
    return Target(name, Path(path) if path else None)


def _targets(requested: list[Target], inputs: Iterable[str | Path | None], *, explains: bool) -> list[Target]:
    """Return the formats to write. Raises UsageError if one could not be written after the work."""
    printed = [target.format for target in requested if target.path is None]
    if len(printed) > 1 or (printed and explains):
        others = ", ".join(printed) + (" and --explain" if explains else "")
        raise UsageError(f"{others} cannot all be printed; write all but one to a file, such as {printed[-1]}:FILE.")
    paths = [target.path for target in requested if target.path is not None]
    for number, path in enumerate(paths):
        if os.path.realpath(path) in map(os.path.realpath, paths[:number]):
            raise UsageError(
                f"{path}: is the output of two formats, and one would overwrite the other; name two files."
            )
        check_output(path, force=True, inputs=inputs)
    return requested if requested or explains else [Target("text", None)]


def drawn(result: CheckResult, format_name: str) -> str:
    """Return the check in a format other than text; `summary` is for `$GITHUB_STEP_SUMMARY`."""
    from overlapscope.base.saved import encode
    from overlapscope.budgets import document, formats
    from overlapscope.documents.model import Room
    from overlapscope.render import html, markdown

    if format_name == "json":
        return encode(result).decode()
    if format_name == "html":
        return html.render(document.page(result, Room(html.body, document.PAGE_BYTES)))
    if format_name in ("markdown", "summary"):
        size = document.COMMENT_BYTES if format_name == "markdown" else document.SUMMARY_BYTES
        return markdown.render(document.page(result, Room(markdown.lines, size), folded=True))
    text: str = getattr(formats, format_name)(result)
    return text


def _written(result: CheckResult, target: Target, *, verbose: bool) -> bytes:
    if target.format != "text":
        return drawn(result, target.format).encode("utf-8", "replace")
    from overlapscope.budgets.document import log
    from overlapscope.documents.model import brief
    from overlapscope.render import terminal

    document = log(result) if verbose else brief(log(result))
    return terminal.to_stream(document, None if target.path else sys.stdout)


def _summarize(result: CheckResult) -> None:
    """Append to the summary of the step if this runs in GitHub Actions."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with open(path, "ab") as file:
            file.write(drawn(result, "summary").encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"{path}: the step summary cannot be written ({error.strerror or error}).") from None
