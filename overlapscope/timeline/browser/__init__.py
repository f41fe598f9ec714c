"""What draws a timeline in a browser: plain JavaScript and one style sheet, which know neither Dash nor a server.

A page calls `overlapscope.mountTimeline` (`api.js`). The dashboard serves the files, a report in one file holds them.
"""

from __future__ import annotations

from importlib.resources import files


def scripts() -> list[str]:
    """The names of the scripts, in the order in which a page loads them; none needs another before it is called."""
    return sorted(place.name for place in files(__name__).iterdir() if place.name.endswith(".js"))


STYLE = "timeline.css"


def text(name: str) -> str:
    """The text of one of the files."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
