"""Parts that plugins add to a report of ranks: results, sentences, figures and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from overlapscope.base.registry import load
from overlapscope.base.saved import decode
from overlapscope.documents.table import Table
from overlapscope.plugin import plugins
from overlapscope.ranks.comparison import Comparison
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.result import RanksReport


class PartTable(NamedTuple):
    """A table of a part."""

    what: str
    """Its short title."""
    table: Table
    """The table, with an id."""
    leads: bool = False
    """True if it comes before the tables on communication instead of after them."""


class RankPart(Protocol):
    """A plugin's module with a part of reports of ranks."""

    Part: type[msgspec.Struct]
    """Structure of the part."""

    def join(self, ranks: Sequence[ReducedRank], comparison: Comparison) -> tuple[msgspec.Struct, Sequence[str]]:
        """Return the part of the ranks compared, and sentences on what could not be determined."""

    def why_late(self, report: RanksReport, part: Any) -> Iterable[str]:
        """Return sentences on why the costliest straggler is late."""

    def sentences(self, part: Any) -> Iterable[str]:
        """Return sentences for the verdict. They are the verdict if no collective could be compared."""

    def tables(self, report: RanksReport, part: Any, *, rows: int) -> Iterable[PartTable]:
        """Return tables, which may be empty, with lists of up to `rows` rows."""


@cache
def modules() -> dict[str, RankPart]:
    """Return the modules of the plugins with a part, by plugin."""
    return {plugin.name: load(plugin.ranks) for plugin in plugins() if plugin.ranks is not None}


def plugin_parts(report: RanksReport) -> Iterator[tuple[RankPart, Any]]:
    """Yield each part of a report with its plugin's module, for the plugins that are here."""
    return ((module, report.parts[name]) for name, module in modules().items() if name in report.parts)


def from_json(data: bytes) -> RanksReport:
    """Read a report of ranks from JSON.

    Returns:
        The report. Parts of plugins that aren't here stay as they are.

    Raises:
        msgspec.ValidationError: If it is not a report of ranks.
        msgspec.DecodeError: If it is not JSON.
    """
    report = decode(data, RanksReport)
    comm = report.communication
    if not {each.dimension for each in comm.rows} | {each.dimension for each in comm.slow_groups} <= {
        *range(len(comm.dimensions))
    }:
        raise msgspec.ValidationError("Expected places in `dimensions` - at `$.communication`")
    here = modules()
    return replace(
        report,
        parts={
            name: msgspec.convert(part, here[name].Part) if name in here else part
            for name, part in report.parts.items()
        },
    )
