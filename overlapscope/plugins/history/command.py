"""`overlapscope history`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.base.output import tell
from overlapscope.base.words import parse_span, plural
from overlapscope.commands import DONE, WRONG_INPUT
from overlapscope.commands._options import add_actions, add_analysis, add_format, add_output, report_of, whole_number
from overlapscope.commands._output import check_output, present
from overlapscope.errors import MissingPackage, UsageError

if TYPE_CHECKING:
    from overlapscope.budgets.verdicts import CheckResult
    from overlapscope.plugins.history.entry import Entry
    from overlapscope.plugins.history.store import Store

_ENTRY_COUNT = whole_number("a number of entries", 1, 10**9)
_DEFAULT_ENTRIES = 20


class HistoryCommand:
    """Keep reports over time, each with its commit, and show when a figure got
    worse.

    A history is one SQLite file, without traces: a few kilobytes a report.
    Without an ACTION, the levels of the job that ran last are shown, and the
    newest entries.

    OVERLAPSCOPE_HISTORY sets the file.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.set_defaults(history=None)
        _add_store(parser)
        _add_query(parser)
        parser.add_argument(
            "--most",
            type=_ENTRY_COUNT,
            default=_DEFAULT_ENTRIES,
            metavar="N",
            help=f"show the newest N entries (default: {_DEFAULT_ENTRIES})",
        )
        _add_levels(parser)
        add_format(parser)
        add_output(parser)
        self._before = {option.dest: option for option in parser._actions}
        action = add_actions(parser, required=False)
        add = action(
            "add",
            "add reports, traces, or entries that other machines wrote to a directory",
            "Each SOURCE is a trace, a directory with the traces of one job, a report of `overlapscope analyze "
            "--format json`, or a directory or URL with entries of other machines.",
        )
        add.add_argument("sources", nargs="+", metavar="SOURCE", help="trace, directory, report, entry, or URL")
        add.add_argument("--job", metavar="NAME", help="name of the program (default: as the trace states)")
        add.add_argument("--commit", metavar="SHA", help="commit of the program (default: as the trace states)")
        add.add_argument("--branch", metavar="NAME", help="branch of the program (default: as the trace states)")
        add.add_argument(
            "--label", metavar="KEY=VALUE", type=_label, action="append", default=[], help="label; may be repeated"
        )
        add.add_argument("--check", metavar="FILE", help="result of `overlapscope check --format json` for the report")
        add.add_argument("--to", metavar="DIR|URL", help="write the entries there as files, for other machines to add")
        add_analysis(add)
        _add_store(add)
        check = action(
            "check",
            "check whether the newest report of a job is worse than its level",
            "Exit codes: 0 no worse; 1 worse, and unlikely by chance; 2 wrong input or usage; 3 unknown.",
        )
        _add_query(check, ("job", "branch"))
        _add_levels(check)
        add_format(check)
        add_output(check)
        _add_store(check)
        prune = action("prune", "remove old entries, and free their disk space")
        which = prune.add_mutually_exclusive_group(required=True)
        which.add_argument("--older-than", metavar="AGE", type=_age_ns, help="entries older than 12h or 90d")
        which.add_argument("--keep", metavar="N", type=_ENTRY_COUNT, help="all but the newest N entries of each job")
        _add_query(prune, ("job",))
        _add_store(prune)
        actions = {"add": add, "check": check, "prune": prune}
        self._after = {name: self._inherited(subparser) for name, subparser in actions.items()}

    def _inherited(self, subparser: argparse.ArgumentParser) -> set[str]:
        """Return the names of an action's options, and let options that stand before the action keep their values."""
        for option in subparser._actions:
            if option.dest in self._before and option.option_strings:
                option.default = argparse.SUPPRESS
        return {option.dest for option in subparser._actions}

    def _check_places(self, args: argparse.Namespace) -> None:
        """Raise UsageError for an option before an action that doesn't have it."""
        for dest, option in self._before.items():
            given = getattr(args, dest, option.default) != option.default
            if args.action is not None and given and dest not in self._after[args.action]:
                name = option.option_strings[-1]
                raise UsageError(
                    f"{name} before {args.action} is an option of `overlapscope history` without an action; "
                    f"`overlapscope history {args.action} --help` lists the options of {args.action}."
                )

    def run(self, args: argparse.Namespace) -> int:
        self._check_places(args)
        actions = {"add": _add, "check": _check, "prune": _prune}
        return actions.get(args.action, _list)(args)


def _add_store(parser: argparse.ArgumentParser) -> None:
    """Add `--history` as `args.history`, before or after an action."""
    parser.add_argument(
        "--history",
        metavar="FILE",
        type=Path,
        help="file of the history (default: one for this user)",
        default=argparse.SUPPRESS,
    )


def _add_query(parser: argparse.ArgumentParser, names: Sequence[str] = ("job", "branch", "commit")) -> None:
    for name in names:
        parser.add_argument(f"--{name}", dest=f"of_{name}", metavar=name.upper(), help=f"only entries of this {name}")


def _add_levels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metric",
        metavar="METRIC",
        action="append",
        help="metric, or one of its causes such as idle_time/host-sync; may be repeated (default: those of overlap)",
    )
    parser.add_argument(
        "--by",
        choices=("commit", "hour", "report"),
        default="report",
        help="combine values by commit, hour or report (default: report)",
    )


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not a label; write it like model=gpt2")
    return key, value


def _age_ns(text: str) -> int:
    try:
        return parse_span(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# -- Add ------------------------------------------------------------------------------------------


def _add(args: argparse.Namespace) -> int:
    from overlapscope.inputs import read_check
    from overlapscope.plugins.history.drop import put
    from overlapscope.plugins.history.store import Store

    check = None if args.check is None else read_check(Path(args.check))
    if check is not None and len(args.sources) > 1:
        raise UsageError("--check is for a single report; add reports with their checks one by one.")
    if args.to is not None:
        entries = [_entry(source, args, check) for source in args.sources]
        for entry in entries:
            put(entry, args.to)
        tell(f"Wrote {_entries(len(entries))} to {args.to}.")
        return DONE
    with Store.open(args.history) as store:
        return max(_add_one(store, source, args, check) for source in args.sources)


def _add_one(store: Store, source: str, args: argparse.Namespace, check: CheckResult | None) -> int:
    from overlapscope.plugins.history.drop import is_drop, pull

    if not is_drop(source):
        added = store.add(_entry(source, args, check))
        tell(f"Added {source} to {store.path}." if added else f"{source}: is already in {store.path}.")
        return DONE
    if check is not None or _has_origin(args):
        raise UsageError(f"{source}: entries there state their origin; leave out --job, --commit and similar options.")
    pulled = pull(store, source)
    for sentence in pulled.bad:
        tell(f"overlapscope: warning: {sentence}")
    left_out = f", left out {plural(len(pulled.bad), 'file')}" if pulled.bad else ""
    tell(f"{source}: added {_entries(pulled.added)}, had {pulled.existing:,} already{left_out}.")
    return WRONG_INPUT if pulled.bad else DONE


def _has_origin(args: argparse.Namespace) -> bool:
    return any((args.job, args.commit, args.branch, args.label))


def _entry(source: str, args: argparse.Namespace, check: CheckResult | None) -> Entry:
    from overlapscope.plugins.history.drop import is_entry, read
    from overlapscope.plugins.history.entry import entry
    from overlapscope.report.origin import of_report

    if is_entry(source):
        if check is not None or _has_origin(args):
            raise UsageError(f"{source}: states its origin; leave out --job, --commit and similar options.")
        return read(source)
    report = report_of([source], args, replayed=True)
    file = Path(source)
    origin = of_report(
        report,
        otherwise_ns=file.stat().st_mtime_ns if file.exists() else time.time_ns(),
        job=args.job,
        commit=args.commit,
        branch=args.branch,
        labels=dict(args.label),
    )
    return entry(report, origin, check)


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


# -- Prune, check and list ----------------------------------------------------------------------------


def _prune(args: argparse.Namespace) -> int:
    from overlapscope.plugins.history.course import job_of
    from overlapscope.plugins.history.store import Query, Store

    with Store.open(args.history, read_only=True) as store:
        # A typing error in the file or the job must be an error, and not create a file or delete nothing silently.
        job = None if args.of_job is None else job_of(store, args.of_job)
    with Store.open(args.history) as store:
        jobs = [job] if job is not None else store.jobs()
        ids: list[str] = []
        if args.older_than is not None:
            before_ns = time.time_ns() - args.older_than
            ids = [row.id for row in store.rows(Query(job=job, until_ns=before_ns))]
        else:
            ids = [row.id for job in jobs for row in store.rows(Query(job=job))[: -args.keep]]
        store.delete(ids)
        if ids:
            store.compact()
    tell(f"Removed {_entries(len(ids))} from {store.path}.")
    return DONE


def _check(args: argparse.Namespace) -> int:
    check_output(args.output, force=args.force, inputs=[args.history])
    from overlapscope.plugins.history.course import DEFAULT, judge
    from overlapscope.plugins.history.document import check_document
    from overlapscope.plugins.history.store import Query, Store

    with Store.open(args.history, read_only=True) as store:
        query = Query(job=args.of_job, branch=args.of_branch)
        result = judge(store, query, args.metric or DEFAULT, args.by)
    present(result, lambda: check_document(result), args)
    return result.exit_code


def _list(args: argparse.Namespace) -> int:
    check_output(args.output, force=args.force, inputs=[args.history])
    from msgspec.structs import replace

    from overlapscope.documents.model import Text
    from overlapscope.plugins.history.course import DEFAULT, JobCourse, courses
    from overlapscope.plugins.history.document import blocks, listing
    from overlapscope.plugins.history.store import Query, Store

    with Store.open(args.history, read_only=True) as store:
        query = Query(job=args.of_job, branch=args.of_branch, commit=args.of_commit)
        rows = store.rows(query, most=args.most)
        document = listing(store, query, rows)
        try:
            job = courses(store, query, args.metric or DEFAULT, args.by) if rows else JobCourse(job=args.of_job or "")
            levels = blocks(job) if rows else []
        except MissingPackage as error:
            if args.metric or args.format == "json":
                raise
            job, levels = JobCourse(job=""), [Text(f"Levels are not shown: {error}")]
    title, *entries = document.blocks
    present(job, lambda: replace(document, blocks=(title, *levels, *entries)), args)
    return DONE
