"""What the laboratory tells while it is at work."""

from __future__ import annotations

from rich.text import Text

from overlapscope.base.words import clean
from overlapscope.laboratory.results import VariantResult
from overlapscope.laboratory.tables import digits
from overlapscope.render.progress import Progress

_STYLE = {"ok": "green", "failed": "bold red", "skipped": "yellow"}


def finished(progress: Progress, experiment: str, result: VariantResult) -> None:
    """A variant is done, in whichever way."""
    line = Text.assemble((f"{result.status:<7}", _STYLE[result.status]), f" {experiment}/{result.name}: ")
    progress.say(line.append(clean(_outcome(result))))


def _outcome(result: VariantResult) -> str:
    if result.status != "ok" or result.wall_ms is None:
        return result.error or ""
    wall = result.wall_ms
    time = f"{digits(wall.median)} ms (IQR {digits(wall.iqr, like=wall.median)}, n = {wall.n:,})"
    wrong = result.wrong_results
    counted = [f"{wrong.wrong} of {wrong.tries} results wrong"] if wrong else []
    return ", ".join([time, *counted, *(analysis.verdict.text for analysis in result.analyses[:1])])
