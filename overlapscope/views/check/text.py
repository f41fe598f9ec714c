"""A check for a terminal: what failed and why, then what else there is to say, the outcome last."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from overlapscope.base.words import clean
from overlapscope.budgets.verdicts import CheckResult, Reason, Verdict, cannot_be_judged
from overlapscope.views.check import shown
from overlapscope.views.terminal import lay_out

WIDTH = 100
"""Of text that goes nowhere in particular."""
_STATUS = {"pass": "green", "fail": "bold red", "unknown": "bold yellow", "skipped": "yellow", "accepted": "yellow"}
_WORD = {"pass": "pass", "fail": "FAIL", "unknown": "unknown", "skipped": "skipped", "accepted": "accepted"}
_OUTCOME = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow"}
_SHORT = ("skipped", "pass")
"""A line says it all: why something is skipped, a warning says once."""
_INDENT = 9


def render(result: CheckResult, *, width: int = WIDTH, encoding: str = "utf-8", color: str | None = None) -> str:
    """The check as lines of at most `width` columns; see `views.terminal.render`."""
    return lay_out(_parts(result), width=width, encoding=encoding, color=color)


def _parts(result: CheckResult) -> Iterator[RenderableType]:
    told: set[str] = set()
    unknown: set[str] = set()
    for verdict in result.verdicts:
        if verdict.status in _SHORT:
            continue
        yield line(_abridged(verdict, unknown), full=True)
        if verdict.status in ("fail", "accepted"):
            for one in shown.reasons(verdict):
                yield Padding(reason(one, told), (0, 0, 0, _INDENT))
            more = len(verdict.reasons) - len(shown.reasons(verdict))
            if more > 0:
                yield Padding(Text(f"{more} more: --format json has all.", style="dim"), (0, 0, 0, _INDENT))
        yield ""
    short = [verdict for verdict in result.verdicts if verdict.status in _SHORT]
    for verdict in short:
        yield line(verdict, full=False)
    if short:
        yield ""
    if len(result.sources) > 1:
        yield Text(shown.judged(result), style="dim")
    if result.program is not None:
        yield Text(shown.prose(result.program), style="dim")
    yield Text(shown.prose(result.summary), style=_OUTCOME[result.outcome])


def _abridged(verdict: Verdict, told: set[str]) -> Verdict:
    """The verdict of a rule that cannot be judged, without the reason where it is in `told`."""
    begin = cannot_be_judged(verdict.metric)
    why = verdict.message.removeprefix(begin)
    if verdict.status != "unknown" or why == verdict.message:
        return verdict
    if why in told:
        return replace(verdict, message=f"{begin}as above.")
    told.add(why)
    return verdict


def line(verdict: Verdict, *, full: bool) -> RenderableType:
    """The status and the budget, with the value; `full` has the whole sentence instead."""
    word = _WORD[verdict.status]
    if verdict.status == "fail" and not verdict.counts:
        word = "warn"
    style = _STATUS["unknown"] if word == "warn" else _STATUS[verdict.status]
    said = Text(shown.name(verdict.budget), style="bold" if full else "")
    if full:
        said = Text("\n").join([said, Text(shown.prose(verdict.message))])
    elif verdict.value is not None and verdict.unit not in ("findings", "differences"):
        said.append(f"  {shown.figures(verdict)[0]}", style="dim")
    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_INDENT - 1, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(word, style=style), said)
    return grid


def reason(one: Reason, told: set[str] | None = None) -> RenderableType:
    """What lies behind a failure. What to change is said once for each rule in `told`."""
    lines = [Text(shown.prose(one.title), style="bold")]
    where = shown.within(one)
    lines += [Text(f"at {where}", style="dim")] if where else []
    lines += [Text(part) for part in _lines(one.detail)]
    if one.rule is None or told is None or one.rule not in told:
        lines += [Text(part, style="cyan") for part in _lines(shown.advice(one))]
    if one.rule is not None:
        rule = shown.name(one.rule)
        again = told is not None and one.rule in told
        lines.append(Text(f"See {rule} above." if again else f"More: overlapscope explain {rule}", style="dim"))
        if told is not None:
            told.add(one.rule)
    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_column()
    grid.add_column(overflow="fold")
    grid.add_row(Text("-"), Text("\n").join(lines))
    return grid


def _lines(text: str) -> list[str]:
    return [clean(part, shown.PROSE_LIMIT) for part in text.split("\n") if part]
