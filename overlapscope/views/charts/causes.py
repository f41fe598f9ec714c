"""What exposed copies, or idle time, are due to."""

from __future__ import annotations

from typing import Literal

from overlapscope.analysis.causes import IdleCause
from overlapscope.base.words import bare_shares
from overlapscope.documents.colors import palette
from overlapscope.documents.figure import Figure, axis, escape, figure
from overlapscope.report.cause_words import EXPOSED_COPY, IDLE, Words
from overlapscope.report.page import Section
from overlapscope.report.scale import unit_of

Subject = Literal["exposed-copy", "idle"]


def by_cause(section: Section, subject: Subject) -> dict[str, int]:
    """The causes that have any time, largest first; ops that are missing are no idle time."""
    device = section.device
    if device is None:
        return {}
    found = device.exposed_copy_by_cause if subject == "exposed-copy" else device.idle_by_cause
    told = ((cause, ns) for cause, ns in found.items() if ns and cause != IdleCause.MISSING_OPS)
    return dict(sorted(told, key=lambda item: (-item[1], item[0])))


def causes(section: Section, subject: Subject, dark: bool) -> Figure:
    """One bar for each cause, largest first; shares are of the bucket."""
    colors = palette(dark)
    words = EXPOSED_COPY if subject == "exposed-copy" else IDLE
    found = by_cause(section, subject)
    whole = sum(found.values())
    unit = unit_of(section, whole)
    shares = bare_shares(list(found.values()), whole)
    texts = [f"{unit.text(ns)} ({part} %)" for ns, part in zip(found.values(), shares, strict=True)]
    most = max(found.values(), default=0) / unit.ns
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [ns / unit.ns for ns in found.values()],
        "y": [escape(cause) for cause in found],
        "marker": {"color": [colors.get(f"{subject}:{cause}", colors["muted"]) for cause in found]},
        "text": texts,
        "textposition": "outside",
        "cliponaxis": False,
        "customdata": [escape(words.get(cause, Words("")).meaning, 200) for cause in found],
        "hovertemplate": "%{y}: %{text}<br>%{customdata}<extra></extra>",
        "showlegend": False,
    }
    return figure(
        [bars],
        dark,
        height=20 + 34 * max(1, len(found)),
        bargap=0.35,
        # Every bar says its number, so the axis need not; room for the text behind the longest.
        xaxis=axis(dark, visible=False, range=[0, 1.45 * most or 1], fixedrange=True),
        yaxis=axis(
            dark, autorange="reversed", type="category", fixedrange=True, ticksuffix="  ", showgrid=False, showline=True
        ),
    )
