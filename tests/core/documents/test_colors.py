"""The palette: nothing without a color, text that can be read, kinds that stay apart for everybody."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from overlapscope.catalog.buckets import BUCKETS
from overlapscope.catalog.causes import CAUSES, COPY_CAUSES, IDLE_CAUSES
from overlapscope.documents.colors import MIN_COLOR_DISTANCE, PATTERNS, palette
from overlapscope.timeline import CATEGORIES

BOTH = pytest.mark.parametrize("dark", [False, True])
Color = tuple[float, float, float]


def _linear(color: str) -> np.ndarray:
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def _contrast(first: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2."""
    light, dark = sorted((float(_linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (first, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


# What people see, in linear RGB: G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, "A Physiologically-based Model for
# Simulation of Color Vision Deficiency" (2009), at full severity.
_SEEN = {
    "all": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def _lab(linear: np.ndarray) -> np.ndarray:
    t = _TO_XYZ @ np.clip(linear, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def _difference(first: np.ndarray, other: np.ndarray) -> float:
    """Return the difference of two colors in Lab (CIEDE2000)."""
    (light, *_), (other_light, *_) = first, other
    chroma = (np.hypot(*first[1:]) + np.hypot(*other[1:])) / 2
    grey = 1.5 - 0.5 * np.sqrt(chroma**7 / (chroma**7 + 25.0**7))
    points = [complex(color[1] * grey, color[2]) for color in (first, other)]
    (c, h), (other_c, other_h) = ((abs(point), np.degrees(np.angle(point)) % 360) for point in points)
    turn = (other_h - h + 180) % 360 - 180 if c * other_c else 0.0
    hue = (h + turn / 2) % 360 if c * other_c else h + other_h
    mean_c, mean_light = (c + other_c) / 2, (light + other_light) / 2
    waves = ((0.17, 1, 30, -1), (0.24, 2, 0, 1), (0.32, 3, -6, 1), (0.20, 4, 63, -1))
    t = 1 + sum(sign * size * np.cos(np.radians(times * hue - shift)) for size, times, shift, sign in waves)
    by_light = (other_light - light) / (1 + 0.015 * (mean_light - 50) ** 2 / np.sqrt(20 + (mean_light - 50) ** 2))
    by_chroma = (other_c - c) / (1 + 0.045 * mean_c)
    by_hue = 2 * np.sqrt(c * other_c) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * mean_c * t)
    blue = -2 * np.sqrt(mean_c**7 / (mean_c**7 + 25.0**7))
    blue *= np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2))))
    return float(np.sqrt(by_light**2 + by_chroma**2 + by_hue**2 + blue * by_chroma * by_hue))


@pytest.mark.parametrize(
    ("first", "other", "difference"),
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.5, 0), (50, 0, -2.5), 4.3065),
        ((50, 2.5, 0), (58, 24, 15), 19.4535),
        ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    ],
)
def test_differences_are_those_of_the_standard(first: Color, other: Color, difference: float) -> None:
    """Pairs of G. Sharma, W. Wu, E. N. Dalal, "The CIEDE2000 color-difference formula" (2005)."""
    assert _difference(np.array(first), np.array(other)) == pytest.approx(difference, abs=1e-4)


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


# -- Side by side, for everybody

LANE = tuple(name for name in CATEGORIES if ":" in name) + ("compute", "hidden-copy", "exposed-comm", "exposed-other")
"""Parts of the overlap lane."""
SIDE_BY_SIDE: dict[str, tuple[str, ...]] = {
    "ops": ("compute", "comm", "h2d-pinned", "d2h-pinned", "exposed-copy", "idle"),
    "buckets": tuple(bucket.id for bucket in BUCKETS.values()),
    "overlap lane": LANE,
    **{subject: tuple(f"{subject}:{cause}" for cause in causes) for subject, causes in CAUSES.items()},
}


@BOTH
@pytest.mark.parametrize("eyes", _SEEN)
@pytest.mark.parametrize("together", SIDE_BY_SIDE)
def test_what_is_shown_side_by_side_can_be_told_apart(dark: bool, eyes: str, together: str) -> None:
    colors = palette(dark)
    seen = {name: _lab(_SEEN[eyes] @ _linear(colors[name])) for name in SIDE_BY_SIDE[together]}
    alike = [
        (first, other, round(difference, 1))
        for first, other in combinations(seen, 2)
        if PATTERNS.get(first) == PATTERNS.get(other)
        and (difference := _difference(seen[first], seen[other])) < MIN_COLOR_DISTANCE
    ]
    assert alike == []


@BOTH
@pytest.mark.parametrize("ground", ["background", "panel"])
def test_causes_and_buckets_stand_out_from_the_page(dark: bool, ground: str) -> None:
    colors = palette(dark)
    shown = {name for what, together in SIDE_BY_SIDE.items() if what != "ops" for name in together}
    faint = [name for name in sorted(shown) if _contrast(colors[name], colors[ground]) < 3]
    assert faint == []
