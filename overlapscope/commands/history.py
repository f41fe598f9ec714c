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
from overlapscope.commands._output import check_output, drawn, present, write, write_file
from overlapscope.errors import MissingPackage, UsageError

if TYPE_CHECKING:
    from overlapscope.budgets.verdicts import CheckResult
    from overlapscope.history.entry import Entry, Origin
    from overlapscope.history.store import Store
    from overlapscope.report.model import Report

_MOST = whole_number("a number of entries", 1, 10**9)
_SHOWN = 20
_FORMATS = ("text", "markdown", "html")


class HistoryCommand:
    """Keep reports over time, with the commit that each is of, and show since
    when a figure is worse.

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
            "--most", type=_MOST, default=_SHOWN, metavar="N", help=f"show the newest N entries (default: {_SHOWN})"
        )
        _add_levels(parser)
        add_format(parser)
        add_output(parser)
        self._before = {option.dest: option for option in parser._actions}
        action = add_actions(parser, required=False)
        add = action(
            "add",
            "add reports, traces, or what other machines left in a directory",
            "Each SOURCE is a trace, a directory with the traces of one job, a report of `overlapscope analyze "
            "--format json`, or a directory or URL with entries of other machines.",
        )
        add.add_argument("sources", nargs="+", metavar="SOURCE", help="trace, directory, report, entry, or URL")
        add_origin(add)
        add.add_argument("--check", metavar="FILE", help="what `overlapscope check --format json` wrote of it")
        add.add_argument("--to", metavar="DIR|URL", help="leave the entries there as files, for other machines to add")
        add_analysis(add)
        _add_store(add)
        check = action(
            "check",
            "check whether the newest report of a job is worse than its level",
            "Exit codes: 0 no worse; 1 worse, and hardly by chance; 2 wrong input or usage; 3 it cannot be said.",
        )
        _add_query(check, ("job", "branch"))
        _add_levels(check)
        add_format(check)
        add_output(check)
        _add_store(check)
        export = action("export", "write the figures as a table, one line for each report, device and metric")
        export.add_argument("output", type=Path, metavar="FILE", help="file that ends in .csv or .parquet")
        export.add_argument("-f", "--force", action="store_true", help="overwrite FILE if it exists")
        _add_store(export)
        prune = action("prune", "remove old entries, and give their space on the disk back")
        which = prune.add_mutually_exclusive_group(required=True)
        which.add_argument("--older-than", metavar="AGE", type=_age_ns, help="entries older than 12h or 90d")
        which.add_argument("--keep", metavar="N", type=_MOST, help="all but the newest N entries of each job")
        _add_query(prune, ("job",))
        _add_store(prune)
        predictions = action("predictions", "show how far predictions of `overlapscope try` were from what it measured")
        add_format(predictions, _FORMATS)
        add_output(predictions)
        _add_store(predictions)
        actions = {"add": add, "check": check, "export": export, "prune": prune, "predictions": predictions}
        self._behind = {name: self._inherited(own) for name, own in actions.items()}

    def _inherited(self, own: argparse.ArgumentParser) -> set[str]:
        """The options of an action. What stands before the action is not undone by what does not stand behind it."""
        for option in own._actions:
            if option.dest in self._before and option.option_strings:
                option.default = argparse.SUPPRESS
        return {option.dest for option in own._actions}

    def _check_places(self, args: argparse.Namespace) -> None:
        """Raises UsageError for an option before an action that has none of that name."""
        for dest, option in self._before.items():
            given = getattr(args, dest, option.default) != option.default
            if args.action is not None and given and dest not in self._behind[args.action]:
                spelled = option.option_strings[-1]
                raise UsageError(
                    f"{spelled} is an option of `overlapscope history` alone when it stands before {args.action}; "
                    f"`overlapscope history {args.action} --help` lists what can stand behind it."
                )

    def run(self, args: argparse.Namespace) -> int:
        self._check_places(args)
        match args.action:
            case "predictions":
                return _predictions(args)
            case "add":
                return _add(args)
            case "check":
                return _check(args)
            case "export":
                return _export(args)
            case "prune":
                return _prune(args)
            case _:
                return _list(args)


def _add_store(parser: argparse.ArgumentParser) -> None:
    """`--history` as `args.history`, before an action or behind it."""
    parser.add_argument(
        "--history",
        metavar="FILE",
        type=Path,
        help="file of the history (default: one for this user)",
        default=argparse.SUPPRESS,
    )


def add_origin(parser: argparse.ArgumentParser) -> None:
    """What a report is of, for `origin_of`."""
    parser.add_argument("--job", metavar="NAME", help="program that it is of (default: what the trace says)")
    parser.add_argument("--commit", metavar="SHA", help="commit that it is of (default: what the trace says)")
    parser.add_argument("--branch", metavar="NAME", help="branch that it is of (default: what the trace says)")
    parser.add_argument(
        "--label", metavar="KEY=VALUE", type=_label, action="append", default=[], help="label; may be repeated"
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
        "--by", choices=("commit", "hour", "report"), default="report", help="what makes one value (default: report)"
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


# -- add ------------------------------------------------------------------------------------------


def _add(args: argparse.Namespace) -> int:
    from overlapscope.history.drop import put
    from overlapscope.history.store import Store
    from overlapscope.inputs import read_check

    check = None if args.check is None else read_check(Path(args.check))
    if check is not None and len(args.sources) > 1:
        raise UsageError("--check is of one report; add reports with their checks one by one.")
    if args.to is not None:
        entries = [_entry(source, args, check) for source in args.sources]
        for entry in entries:
            put(entry, args.to)
        tell(f"Left {_entries(len(entries))} in {args.to}.")
        return DONE
    with Store.open(args.history) as store:
        return max([_add_one(store, source, args, check) for source in args.sources])


def _add_one(store: Store, source: str, args: argparse.Namespace, check: CheckResult | None) -> int:
    from overlapscope.history.drop import is_drop, pull

    if not is_drop(source):
        added = store.add(_entry(source, args, check))
        tell(f"Added {source} to {store.path}." if added else f"{source}: is in {store.path} already.")
        return DONE
    if check is not None or _told(args):
        raise UsageError(f"{source}: entries there say what they are of; leave out --job, --commit and the like.")
    pulled = pull(store, source)
    for sentence in pulled.bad:
        tell(f"overlapscope: warning: {sentence}")
    left_out = f", left out {plural(len(pulled.bad), 'file')}" if pulled.bad else ""
    tell(f"{source}: added {_entries(pulled.added)}, had {pulled.known:,} already{left_out}.")
    return WRONG_INPUT if pulled.bad else DONE


def _told(args: argparse.Namespace) -> bool:
    return any((args.job, args.commit, args.branch, args.label))


def _entry(source: str, args: argparse.Namespace, check: CheckResult | None) -> Entry:
    from overlapscope.history.drop import is_entry, read
    from overlapscope.history.figures import entry

    if is_entry(source):
        if check is not None or _told(args):
            raise UsageError(f"{source}: says itself what it is of; leave out --job, --commit and the like.")
        return read(source)
    report = report_of([source], args, replayed=True)
    return entry(report, origin_of(report, source, args), check)


def origin_of(report: Report, source: str, args: argparse.Namespace) -> Origin:
    """What options say of a report's origin, else the report itself. Raises UsageError where neither knows the job."""
    from overlapscope.history.origin import of_report

    file = Path(source)
    changed_ns = file.stat().st_mtime_ns if file.exists() else time.time_ns()
    return of_report(
        report,
        otherwise_ns=changed_ns,
        job=args.job,
        commit=args.commit,
        branch=args.branch,
        labels=dict(args.label),
    )


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


# -- export, prune and list ---------------------------------------------------------------------------


def _export(args: argparse.Namespace) -> int:
    check_output(args.output, force=args.force, inputs=[args.history])
    from overlapscope.history.export import to_bytes
    from overlapscope.history.store import Store

    with Store.open(args.history, read_only=True) as store:
        write_file([to_bytes(store, args.output.suffix)], args.output, force=args.force)
    return DONE


def _prune(args: argparse.Namespace) -> int:
    from overlapscope.history.course import job_of
    from overlapscope.history.store import Query, Store

    with Store.open(args.history, read_only=True) as store:
        # Neither a file nor a job is made up by a slip of the pen.
        job = None if args.of_job is None else job_of(store, args.of_job)
    with Store.open(args.history) as store:
        jobs = [job] if job is not None else store.jobs()
        gone: list[str] = []
        if args.older_than is not None:
            before_ns = time.time_ns() - args.older_than
            gone = [row.id for row in store.rows(Query(job=job, until_ns=before_ns))]
        else:
            gone = [row.id for job in jobs for row in store.rows(Query(job=job))[: -args.keep]]
        store.delete(gone)
        if gone:
            store.compact()
    tell(f"Removed {_entries(len(gone))} from {store.path}.")
    return DONE


def _check(args: argparse.Namespace) -> int:
    check_output(args.output, force=args.force, inputs=[args.history])
    from overlapscope.history.course import DEFAULT, judge
    from overlapscope.history.level_document import check_document
    from overlapscope.history.store import Query, Store

    with Store.open(args.history, read_only=True) as store:
        query = Query(job=args.of_job, branch=args.of_branch)
        result = judge(store, query, args.metric or DEFAULT, args.by)
    present(result, lambda: check_document(result), args)
    return result.exit_code


def _list(args: argparse.Namespace) -> int:
    check_output(args.output, force=args.force, inputs=[args.history])
    from msgspec.structs import replace

    from overlapscope.documents.model import Text
    from overlapscope.history.course import DEFAULT, JobCourse, courses
    from overlapscope.history.document import listing
    from overlapscope.history.level_document import blocks
    from overlapscope.history.store import Query, Store

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


def _predictions(args: argparse.Namespace) -> int:
    check_output(args.output, force=args.force, inputs=[args.history])
    from overlapscope.history.document import predictions
    from overlapscope.history.store import Store

    with Store.open(args.history, read_only=True) as store:
        document = predictions(store.predictions(), most=_SHOWN)
    write(drawn(document, args), args.output, force=args.force)
    return DONE
