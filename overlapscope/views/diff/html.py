"""A diff as one HTML file that needs nothing else: the answer first, the buckets as bars, then every table."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from overlapscope.base.words import clean
from overlapscope.compare.difference import DeviceDiff, Diff
from overlapscope.views.charts.before_after import before_after
from overlapscope.views.diff import tables
from overlapscope.views.diff.words import NOISE, device_title, side_name, standing
from overlapscope.views.html import document
from overlapscope.views.html.document import Chart, Document
from overlapscope.views.html.parts import panel, table
from overlapscope.views.old_tables import Table

_STYLE = "td.flexible { min-width: 12rem; }"
"""Kernels have long names, and their tables may be scrolled."""


def render(diff: Diff, *, verbose: bool = False) -> str:
    """The diff as one document."""
    title = f"{side_name(diff.before, diff.after)} → {side_name(diff.after, diff.before)}"
    body = [*_head(diff, title)]
    charts = {}
    several = len(diff.devices) > 1
    for number, device in enumerate(diff.devices):
        if several:
            body.append(f"<h2>{escape(device_title(diff, device))}</h2><p>{escape(clean(device.verdict))}</p>")
        name = f"buckets-{number}"
        light, dark = (before_after(device.figures, on_dark) for on_dark in (False, True))
        charts[name] = Chart(light, dark)
        body += _device(device, name, int(light["layout"]["height"]), verbose)
    return document.render(
        Document(f"overlapscope diff: {title}", body, charts=charts, styles=[document.asset("report.css"), _STYLE])
    )


def _head(diff: Diff, title: str) -> Iterator[str]:
    stands = standing(diff)
    yield f'<header class="top"><p class="muted">overlapscope diff</p><h1>{escape(title)}</h1></header>'
    word = f'<span class="level {stands.level}">{escape(stands.word.capitalize())}</span>'
    yield f'<div class="panel verdict"><p>{word}{escape(clean(diff.verdict))}</p>{table(tables.sides(diff))}</div>'
    doubts = tables.doubts(diff)
    if doubts:
        said = "".join(
            f'<li>{escape(detail)} <span class="muted">{escape(holds)}</span></li>' for detail, holds in doubts
        )
        yield panel("Compare with care", f"<ul>{said}</ul>")
    if len(diff.devices) > 1:
        yield _panel(tables.summary(diff))


def _device(device: DeviceDiff, chart: str, height: int, verbose: bool) -> Iterator[str]:
    buckets = tables.buckets(device)
    plot = f'<div class="plot" id="{chart}" style="height:{height}px"></div>'
    yield panel(buckets.title, plot, _table(buckets))
    shown = [*tables.causes(device, verbose=verbose), *tables.details(device, verbose=verbose)]
    yield from (_panel(one) for one in shown if one.rows)


def _panel(shown: Table) -> str:
    return panel(shown.title, _table(shown))


def _table(shown: Table) -> str:
    return table(tables.untitled(shown), {**tables.tones(shown), NOISE: "muted"})
