"""A baseline for a terminal: where it was made, and the typical value of each metric."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from overlapscope.base.words import NOTHING, clean
from overlapscope.budgets.baseline import STEPS, Baseline, BaselineSeries, doubts
from overlapscope.views.old_tables import Column, Table, text
from overlapscope.views.terminal import lay_out, table_grid

_LIMIT = 100


def render(baseline: Baseline, *, width: int, encoding: str = "utf-8", color: str | None = None) -> str:
    """The baseline as lines of at most `width` columns; see `views.terminal.render`."""
    return lay_out(_parts(baseline, width), width=width, encoding=encoding, color=color)


def _parts(baseline: Baseline, width: int) -> Iterator[RenderableType]:
    yield table_grid(_made_on(baseline), width)
    yield ""
    for device in baseline.devices:
        yield table_grid(_metrics(baseline, device.rank, device.device), width)
        yield ""
    for doubt in doubts(baseline):
        yield Text(doubt)


def _made_on(baseline: Baseline) -> Table:
    one = baseline.environment
    recorded = [name.replace("_", " ") for name, given in sorted(one.flags.items()) if given]
    rows = (
        ("GPU", ", ".join(clean(name, _LIMIT) for name in one.gpus) or NOTHING),
        ("ranks", NOTHING if one.world_size is None else str(one.world_size)),
        ("torch", clean(one.torch or NOTHING, _LIMIT)),
        ("CUDA", clean(one.cuda or NOTHING, _LIMIT)),
        ("driver's CUDA", clean(one.driver or NOTHING, _LIMIT)),
        ("recorded besides times", clean(", ".join(recorded), _LIMIT) or "nothing"),
        ("written by", f"{clean(baseline.tool.name, _LIMIT)} {clean(baseline.tool.version, _LIMIT)}"),
    )
    return Table("Made on", (text("made on"), text("", flexible=True)), rows)


def _name(one: BaselineSeries) -> str:
    way = f"{one.direction} " if one.direction else ""
    return f"{way}{one.metric}{f', {clean(one.cause, _LIMIT)}' if one.cause else ''}"


def _metrics(baseline: Baseline, rank: int | None, device: int) -> Table:
    title = f"device {device}" if rank is None else f"rank {rank}, device {device}"
    rows = tuple(
        (
            _name(one),
            STEPS if one.scope == STEPS else clean(one.scope, _LIMIT),
            f"{len(one.values):,}",
            clean(one.typical, _LIMIT),
        )
        for one in baseline.series
        if (one.rank, one.device) == (rank, device)
    )
    return Table(title, (text(title), text("of", flexible=True), Column("count"), Column("median")), rows)
