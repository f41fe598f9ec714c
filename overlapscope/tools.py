"""Interface between the server for assistants and the tools that plugins bring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.report.model import Report, build
from overlapscope.trace.model import Trace


class QueriedTraces(Struct, frozen=True, eq=False, dict=True):
    """Traces to query, analyzed once, when that is needed."""

    traces: tuple[Trace, ...]

    @cached_property
    def analyses(self) -> tuple[TraceAnalysis, ...]:
        return tuple(map(analyze_trace, self.traces))

    @cached_property
    def report(self) -> Report:
        """Report with the plain program and findings of all traces."""
        return build(self.analyses)


class Server(Protocol):
    """The assistant's server, as tools use it. It reads the directories that the user named, and nothing outside."""

    def path(self, name: str) -> Path:
        """Return a file or directory. Raises UsageError if there is none."""

    def trace(self, name: str) -> QueriedTraces:
        """Return a single trace. Raises UsageError if there are several or none, and UnreadableTrace."""

    def traces(self, name: str) -> QueriedTraces:
        """Return a trace, or all traces of a directory. Raises UsageError for too many or none, and UnreadableTrace."""

    def doubts(self, report: Report) -> list[str]:
        """Return sentences on doubts about the traces of a report."""

    def answer(
        self,
        head: Mapping[str, Any],
        items: Sequence[Any] = (),
        *,
        figures: str,
        unknown: Iterable[str] = (),
        called: str = "items",
        page: int = 1,
    ) -> str:
        """Return a page of an answer. Items are distributed over pages without dividing any.

        Args:
            head: Fields on every page.
            items: The items.
            figures: The program that the figures describe.
            unknown: Sentences about what is unknown.
            called: Name of the field with the items.
            page: Number of the page, from 1.

        Raises:
            UsageError: The page doesn't exist, or a single item is too large.
        """
