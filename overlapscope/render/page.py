"""The shell of an HTML file that needs nothing else: policy, colours, scripts, and what they draw from.

The file loads nothing, and its policy forbids it, so that it works from a mail or a build's artefacts. Plotly is
carried along compressed, since it would take 5 MB as it is; the page unpacks it before it draws its charts.
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
    """The whole file as text.

    `body` is HTML in which what is foreign has been escaped. `charts` are figures on light and on dark ground, by the
    `id` of the element that each is drawn in. `data` is anything JSON can hold, which scripts find by the name it has
    here: `overlapscope.data(name)`.
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
    """A file of `render/assets`, as text."""
    return files("overlapscope").joinpath("render", "assets", name).read_text(encoding="utf-8")


def packed(value: Any) -> str:
    """A value as JSON, compressed, in base64: no name from a trace can end a script that it cannot be read in."""
    return _pack(msgspec.json.encode(value))


def _pack(data: bytes) -> str:
    """Bytes, compressed, in base64; the same on every day."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode("ascii")


@cache
def _packed_plotly() -> str:
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return _pack(script.encode())


def changes(before: Any, after: Any) -> list[list[Any]]:
    """What turns one JSON value into another: paths and the values there.

    A figure in light and dark is the same but for some colours, so that it need not be carried twice.
    """
    return list(_changes(before, after, []))


def _changes(before: Any, after: Any, path: list[str | int]) -> Iterable[list[Any]]:
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for key in before:
            yield from _changes(before[key], after[key], [*path, key])
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _changes(one, other, [*path, number])
    elif before != after:
        yield [path, after]


@cache
def theme_css() -> str:
    """The palette as CSS variables, for light and dark; a choice on the page goes before the system's."""
    light, dark = (
        "".join(f"--{variable(name)}:{color};" for name, color in palette(is_dark).items()) for is_dark in (False, True)
    )
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )


def variable(name: str) -> str:
    """A palette's name as the name of a CSS variable."""
    return name.replace(":", "-")
