"""Where in the dashboard a person is: what its URL says, and the links to elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from urllib.parse import parse_qs, urlencode

FIRST_PAGE = "overview"
RECORDED = "recorded"
_IN_URL = {
    "trace": "trace",
    "device": "device",
    "start_ns": "from",
    "end_ns": "to",
    "other": "with",
    "report": "report",
    "of": "of",
}


@dataclass(frozen=True, slots=True)
class UrlState:
    """One page on one trace. Times are relative to `Lanes.origin_ns`."""

    base: str = "/"
    """What comes before every path: `--base-path`, with a slash at both ends."""
    page: str = FIRST_PAGE
    trace: str | None = None
    device: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    other: str | None = None
    """The second trace of the page Compare."""
    report: str | None = None
    """The report that the page Ranks shows."""
    of: str | None = None
    """`RECORDED` where the recording is asked for; else the plain program is shown of a trace that has one."""

    def href(self, page: str | None = None, **changes: str | int | None) -> str:
        """The URL path of this place with the given fields changed. Spans stay behind on another page or timeline."""
        there = replace(self, **changes)  # type: ignore[arg-type]
        there = replace(there, page=self.page if page is None else page)
        if (there.trace, there.page, there.of) != (self.trace, self.page, self.of):
            there = replace(there, start_ns=changes.get("start_ns"), end_ns=changes.get("end_ns"))  # type: ignore[arg-type]
        if there.trace != self.trace:
            there = replace(there, device=changes.get("device"))  # type: ignore[arg-type]
        known = {_IN_URL[f.name]: getattr(there, f.name) for f in fields(there) if f.name in _IN_URL}
        query = urlencode({name: value for name, value in known.items() if value is not None}, safe="/")
        return f"{self.base}{there.page}{'?' if query else ''}{query}"


def parse(base: str, pathname: str | None, search: str | None) -> UrlState:
    """The place that a URL's path and query name; what makes no sense in it is left out."""
    path = (pathname or "").removeprefix(base).strip("/")
    asked = {name: values[-1] for name, values in parse_qs((search or "").removeprefix("?")).items()}
    return UrlState(
        base=base,
        page=path or FIRST_PAGE,
        trace=asked.get("trace"),
        device=_number(asked.get("device")),
        start_ns=_number(asked.get("from")),
        end_ns=_number(asked.get("to")),
        other=asked.get("with"),
        report=asked.get("report"),
        of=RECORDED if asked.get("of") == RECORDED else None,
    )


def _number(text: str | None) -> int | None:
    try:
        value = int(text or "")
    except ValueError:
        return None
    # No time is longer, and JSON's writers take no longer number.
    return value if abs(value) < 1 << 63 else None
