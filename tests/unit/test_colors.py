"""The palette: nothing without a color, text that can be read, kinds that stay apart for everybody."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.documents.colors import palette
from overlapscope.timeline import CATEGORIES

BOTH = pytest.mark.parametrize("dark", [False, True])
APART = ("compute", "comm", "h2d-pinned", "d2h-pinned", "exposed-copy", "idle")


def _linear(color: str) -> np.ndarray:
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def _contrast(first: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2."""
    light, dark = sorted((float(_linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (first, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


# Colors as seen without red (protan) or green (deutan) cones, in linear RGB, by Viénot, Brettel and Mollon (1999).
_SEEN = {
    "protan": np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]),
    "deutan": np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]),
    "all": np.eye(3),
}


def _lab(linear: np.ndarray) -> np.ndarray:
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = np.cbrt(np.clip(xyz / [0.9505, 1, 1.089], 0, None))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@BOTH
def test_everything_drawn_has_a_colour(dark: bool) -> None:
    colors = palette(dark)
    causes = [f"exposed-copy:{c}" for c in COPY_CAUSES] + [f"idle:{c}" for c in IDLE_CAUSES]
    assert {*CATEGORIES, *causes} <= set(colors)
    assert all(re.fullmatch("#[0-9a-f]{6}", color) for color in colors.values())


@BOTH
def test_light_and_dark_name_the_same_things(dark: bool) -> None:
    assert palette(dark).keys() == palette(not dark).keys()


@BOTH
@pytest.mark.parametrize("ground", ["background", "panel"])
@pytest.mark.parametrize("name", ["text", "muted", "accent", "good", "fair", "poor"])
def test_text_can_be_read(dark: bool, ground: str, name: str) -> None:
    colors = palette(dark)
    assert _contrast(colors[name], colors[ground]) >= 4.5


@BOTH
@pytest.mark.parametrize("eyes", _SEEN)
def test_the_main_kinds_stay_apart(dark: bool, eyes: str) -> None:
    colors = palette(dark)
    for first, other in combinations(APART, 2):
        seen = [_lab(_SEEN[eyes] @ _linear(colors[name])) for name in (first, other)]
        assert np.linalg.norm(seen[0] - seen[1]) > 15, (first, other)


@BOTH
@pytest.mark.parametrize("family", ["exposed-copy:", "idle:"])
def test_no_two_causes_share_a_colour(dark: bool, family: str) -> None:
    mine = [color for name, color in palette(dark).items() if name.startswith(family)]
    assert len(set(mine)) == len(mine)
