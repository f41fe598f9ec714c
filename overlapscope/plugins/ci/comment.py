"""Comment of a check on a pull request: the verdict, the change against the base branch, and how to see it.

All text of recordings, branches and files passes through `render.markdown`, which shows it literally.
"""

from __future__ import annotations

import filecmp
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from overlapscope.base.output import tell
from overlapscope.base.words import clean
from overlapscope.budgets import document as check_document
from overlapscope.budgets import words
from overlapscope.documents.model import Block, Code, Document, Heading, Items, Room, Section, Span, Text, Words, brief
from overlapscope.errors import OverlapscopeError
from overlapscope.render import markdown

if TYPE_CHECKING:
    from overlapscope.analysis import TraceAnalysis
    from overlapscope.analysis.strip import Strip
    from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult

MOST_BYTES: Final = 65_536
"""Size limit of a comment on GitHub, in characters; GitLab's is larger."""
_DETAILS_BYTES: Final = 24_000
"""Size limit of the check, and of the comparison."""
_MOST_FAILURES: Final = 5
_SENTENCE: Final = 400
"""Maximum length of a sentence that all of the check has in full."""
_NAME: Final = 100
_ADDRESS: Final = re.compile(r"https?://[\w.:/#?=&%+-]+")
_MARKER: Final = "<!-- overlapscope:{} -->"


class CommentedJob(NamedTuple):
    """The job that a comment is about."""

    base: str = "the base branch"
    """Name of the branch that the change is compared with."""
    recording: str = ""
    """Command that gets the recording; empty if it is there."""
    artifacts: str = ""
    """Address of the page with the picture."""
    conclusion: str = ""
    """Sentence on the check of the branch itself, if this one judged by the limits of the base branch."""


def marker(name: str) -> str:
    """Return the first line of a comment, by which it is found again."""
    return _MARKER.format(re.sub(r"[^A-Za-z0-9_.]+", "-", name)[:_NAME].strip("-"))


def write(
    traces: Sequence[str], check: Path, before: str | None, name: str, job: CommentedJob
) -> tuple[str, bytes | None]:
    """Return the comment, and a picture of the step before and after.

    Args:
        traces: Recordings that were checked.
        check: File of the check's result. If it can't be read, the comment states that nothing was checked.
        before: Recording of the base branch.
        name: Name that sets several comments apart.
        job: The job that checked.
    """
    from overlapscope.inputs import read_check

    try:
        result = read_check(check)
    except (OverlapscopeError, OSError) as error:
        tell(f"overlapscope: {error}")
        result = None
    after_sides = _analyses(traces)
    before_sides = _analyses([before]) if before is not None else []
    picture = _picture(before_sides, after_sides)
    commands = [job.recording, shlex.join(["overlapscope", "check", *traces])]
    commands += [shlex.join(["overlapscope", "diff", before, *traces[:1]])] if before_sides and before else []
    first = [*_verdict(result), *_reservations(traces, before, job)]
    is_linked = picture is not None and _ADDRESS.fullmatch(job.artifacts) is not None
    link = f"[Picture of the step before and after]({job.artifacts})\n\n" if is_linked else ""
    to_see = Code("\n".join(map(clean, filter(None, commands))), language="sh")
    last: list[Block] = [Section((to_see,), "To see it on your machine")]
    details: list[Block] = []
    if result is not None:
        page = check_document.page(result, Room(markdown.lines, _DETAILS_BYTES), folded=True)
        details = [Section(page.blocks[1:], "All of the check", folded=True)]
    text = ""
    for comparison in _comparisons(before_sides, after_sides, job):
        text = f"{marker(name)}\n{_drawn([*first, *comparison])}\n{link}{_drawn([*last, *details])}"
        if len(text.encode("utf-8", "replace")) <= MOST_BYTES:
            return text, picture
    return text.removesuffix(_drawn(details)), picture


def _drawn(blocks: Sequence[Block]) -> str:
    return markdown.render(Document("", tuple(blocks)))


def _analyses(paths: Sequence[str]) -> list[TraceAnalysis]:
    """Return the analyses of some recordings; none, with a message, if one can't be read."""
    from overlapscope.analysis import analyze_trace
    from overlapscope.inputs import read_recordings

    try:
        return [analyze_trace(trace) for trace in read_recordings(paths)]
    except (OverlapscopeError, OSError) as error:
        tell(f"overlapscope: {error}")
        return []


def _picture(before: Sequence[TraceAnalysis], after: Sequence[TraceAnalysis]) -> bytes | None:
    from overlapscope.plugins.ci.picture import draw

    sides = [("before", before), ("after", after)]
    shown = [(name, strip) for name, side in sides for strip in [_strip(side)] if strip is not None]
    return draw(shown) if shown else None


def _strip(side: Sequence[TraceAnalysis]) -> Strip | None:
    """Return the strip of the first device; None if there is none."""
    from overlapscope.analysis.strip import measure
    from overlapscope.plugins.ci.picture import WIDTH

    devices = [device for analysis in side for device in analysis.devices if device.result.span_ns > 0]
    return measure(devices[0].timeline, devices[0].result, slices=WIDTH, lanes=4) if devices else None


def _reservations(traces: Sequence[str], before: str | None, job: CommentedJob) -> Iterator[Block]:
    """Yield what keeps the verdict from being about the change."""
    if job.conclusion:
        yield Text(job.conclusion)
    with suppress(OSError):
        if before is not None and len(traces) == 1 and filecmp.cmp(traces[0], before, shallow=False):
            yield Text(
                (
                    "The recording is that of ",
                    Span(clean(job.base, _NAME)),
                    ". The change was not recorded, so "
                    "this says nothing about it: record the program again, and commit the recording.",
                ),
                strong=True,
            )


# -- Text -------------------------------------------------------------------------------------------


def _verdict(result: CheckResult | None) -> Iterator[Block]:
    if result is None:
        yield Heading("overlapscope check: nothing was checked", 1)
        yield Text("The recording, or the check of it, failed; the job's log says why. This is no pass.")
        return
    yield Heading(f"overlapscope check: {words.OUTCOME[result.outcome]}", 1)
    yield Text(clean(words.prose(result.summary), _SENTENCE))
    failures = [verdict for verdict in result.verdicts if words.counted(verdict)]
    yield Items(tuple(_failure(verdict) for verdict in failures[:_MOST_FAILURES]))
    if len(failures) > _MOST_FAILURES:
        yield Text(f"{len(failures) - _MOST_FAILURES:,} more are listed below.")


def _failure(verdict: BudgetVerdict) -> Words:
    """Return what failed, where, and what to do."""
    reason = verdict.reasons[0] if verdict.reasons else None
    where = words.name(verdict.where) if verdict.where else words.within(reason) if reason else ""
    advice = words.prose(reason.advice.split("\n")[0]) if reason else ""
    lines = [clean(words.prose(verdict.message), _SENTENCE), f"At {where}." if where else "", clean(advice, _SENTENCE)]
    return (Span(words.name(verdict.budget), strong=True), *(Span(f"\n{line}") for line in lines if line))


def _comparisons(
    before: Sequence[TraceAnalysis], after: Sequence[TraceAnalysis], job: CommentedJob
) -> Iterator[list[Block]]:
    """Yield what changed against the base branch: first in full, then shorter, at last in a sentence."""
    branch = Span(clean(job.base, _NAME), strong=True)
    if not before or not after:
        missing = "this change" if before else "the base branch"
        yield [Text((f"There is no readable recording of {missing}, so nothing is compared with ", branch, "."))]
        return
    from overlapscope.compare.diff import diff
    from overlapscope.compare.document import document
    from overlapscope.report.model import build

    title = Heading("Against the base branch", 2)
    try:
        changes = diff(build(before), build(after))
    except OverlapscopeError as error:
        yield [title, Text(clean(str(error), words.PROSE_LIMIT))]
        return
    whole = document(changes, room=Room(markdown.lines, _DETAILS_BYTES))
    beside = Text(("Before is ", branch, ", after is this change."))
    for each in (whole, brief(whole)):
        # Its heading names two files.
        verdict, *tables = each.blocks[1:]
        yield [title, verdict, beside, Section(tuple(tables), "What changed", folded=True)]
    yield [title, Text(clean(changes.verdict, words.PROSE_LIMIT))]
