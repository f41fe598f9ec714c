"""The unit for a part of a section that may be far smaller than the whole."""

from __future__ import annotations

from overlapscope.base.words import Unit, unit_for
from overlapscope.report.page import Section

_SMALL = 100
"""A part below 1% of the span reads badly in the span's unit."""


def unit_of(section: Section, part_ns: int) -> Unit:
    """The section's unit, so that its pages agree; one of the part's own where it is small."""
    span = section.device.span_ns if section.device else 0
    return section.unit if _SMALL * part_ns >= span else unit_for(part_ns)
