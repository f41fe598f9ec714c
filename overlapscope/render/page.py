"""The frame of a self-contained HTML file: policy, colors, scripts and their data.

The file loads nothing, and its policy forbids loading, so that it works in a mail or a build's artifacts. Plotly's 5 MB
are included compressed; the page unpacks them before it draws its charts.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from overlapscope.base.words import clean
from overlapscope.documents.colors import palette
from overlapscope.documents.model import Figure

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)


def wrap(
    title: str,
    body: Iterable[str],
    charts: Mapping[str, tuple[Figure, Figure]],
    data: Mapping[str, Any],
    scripts: Sequence[str],
    styles: Sequence[str],
) -> str:
    """Return the text of the file.

    Args:
        title: Title of the window.
        body: HTML in which text from traces has been escaped.
        charts: Figures for light and dark background, by the `id` of the element that shows them.
        data: JSON values that scripts find by name: `overlapscope.data(name)`.
        scripts: JavaScript that runs after the page's own.
        styles: CSS after the page's own.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(clean(title, 200))}</title>",
        *(f"<style>{style}</style>" for style in (theme_css(), asset("page.css"), *styles)),
        "</head><body>",
        '<button id="theme" type="button" title="Light or dark" hidden>◐<span class="sr">light or dark</span></button>',
        "<main>",
        *body,
        "</main>",
    ]
    packed_data = dict(data)
    if charts or packed_data:
        parts.append(
            "<noscript><p>Charts and timelines need JavaScript; everything else is here without it.</p></noscript>"
        )
    if charts:
        packed_data["charts"] = {name: [light, changes(light, dark)] for name, (light, dark) in charts.items()}
        parts.append(f'<script type="text/plain" id="packed-plotly">{_packed_plotly()}</script>')
    for name, value in packed_data.items():
        parts.append(f'<script type="text/plain" id="packed-{name}">{packed(value)}</script>')
    parts += [f"<script>{script}</script>" for script in (asset("page.js"), *scripts)]
    return "\n".join([*parts, "</body></html>\n"])


def asset(name: str) -> str:
    """Return the text of a file in `render/assets`."""
    return files("overlapscope").joinpath("render", "assets", name).read_text(encoding="utf-8")


def packed(value: Any) -> str:
    """Return a value as compressed JSON in base64, so that no name from a trace can end the script element."""
    return _pack(msgspec.json.encode(value))


def _pack(data: bytes) -> str:
    """Return compressed bytes in base64, the same on every day."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode("ascii")


@cache
def _packed_plotly() -> str:
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return _pack(script.encode())


def changes(before: Any, after: Any) -> list[list[Any]]:
    """Return the paths and values that turn one JSON value into another.

    The light and dark versions of a figure differ only in a few colors, so the file has the second as changes to the
    first.
    """
    return list(_changes(before, after, []))


def _changes(before: Any, after: Any, path: list[str | int]) -> Iterable[list[Any]]:
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for key in before:
            yield from _changes(before[key], after[key], [*path, key])
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _changes(old, new, [*path, number])
    elif before != after:
        yield [path, after]


@cache
def theme_css() -> str:
    """Return the palette as CSS variables for light and dark. A choice on the page overrides the system's."""
    light, dark = (
        "".join(f"--{variable(name)}:{color};" for name, color in palette(is_dark).items()) for is_dark in (False, True)
    )
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )


def variable(name: str) -> str:
    """Return the CSS variable for a name of the palette."""
    return name.replace(":", "-")
