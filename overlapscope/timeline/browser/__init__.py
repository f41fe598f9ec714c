"""The timeline in a browser: plain JavaScript and a style sheet that depend neither on Dash nor on a server.

A page calls `overlapscope.mountTimeline` (`api.js`). The dashboard serves the files, and an HTML report includes them.
"""

from __future__ import annotations

from importlib.resources import files


def scripts() -> list[str]:
    """Return the names of the scripts in loading order. No script needs another until it is called."""
    return sorted(place.name for place in files(__name__).iterdir() if place.name.endswith(".js"))


STYLE = "timeline.css"


def text(name: str) -> str:
    """Return the text of a file."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
