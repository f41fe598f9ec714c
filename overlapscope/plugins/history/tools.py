"""Tool for assistants that asks a history of reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from msgspec.structs import asdict
from pydantic import Field

from overlapscope.plugins.history.course import DEFAULT, courses
from overlapscope.plugins.history.store import Query, Store
from overlapscope.tools import Server


def tools(server: Server) -> tuple[Callable[..., str], ...]:
    """Return the tool."""

    def history(
        path: Annotated[str, Field(description="file of a history (overlapscope history --history FILE)")],
        metric: Annotated[str | None, Field(description="such as efficiency_pct, step_time, idle_time")] = None,
        job: Annotated[str | None, Field(description="default: the job that ran last")] = None,
        page: Annotated[int, Field(description="page of the answer, from 1")] = 1,
    ) -> str:
        """Show since which commit or hour a figure of a job is better or worse: its levels and their changes."""
        with Store.open(server.path(path), read_only=True, traceless=True) as store:
            result = courses(store, Query(job=job), DEFAULT if metric is None else (metric,), "report")
        items: list[dict[str, Any]] = []
        for course in result.courses:
            of = {"metric": course.metric, "unit": course.unit, "figures": "plain" if course.plain else "recorded"}
            since = [{"since_ns": group.at_ns, "commit": group.commit} for group in course.levels.groups]
            items += [
                {**of, **asdict(level), "reports": level.end - level.first, **since[level.first]}
                for level in course.levels.levels
            ]
            items += [{**of, "change": change, **since[change.first]} for change in course.levels.changes]
        unknown = [f"{each.metric}: {each.levels.unknown}." for each in result.courses if each.levels.unknown]
        return server.answer(
            {"job": result.job}, items, figures="as each item says", unknown=unknown, called="levels", page=page
        )

    return (history,)
