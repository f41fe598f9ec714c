"""A package outside the tree, `toy`, whose plugin adds a command, a page, a rule, a measure and a source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from overlapscope import plugin
from overlapscope.installed import GROUP

MANIFEST = """
from overlapscope.plugin import Command, Plugin, PluginPage, Recorder, TraceSource

PLUGIN = Plugin(
    "toy",
    commands=(Command("toy", "say hello", "toy.command:ToyCommand"),),
    pages=(PluginPage("toy", "Toys", "toy.page"),),
    rules={"long-recording": "toy.rule:RULE"},
    measures="toy.measure:MEASURES",
    sources=(
        TraceSource(
            Recorder("toy", "Toy", gpu_activity="GPU", launches="It can't.", sync_events="It can't."),
            (".toy",),
            rb"toy 1\\n",
            "toy.source:read",
        ),
    ),
)
"""
COMMAND = """
class ToyCommand:
    "Say hello."

    def prepare_parser(self, parser):
        parser.add_argument("name")

    def run(self, args):
        print(f"hello, {args.name}")
        return 3
"""
PAGE = """
from dash import html

from overlapscope.dashboard.callbacks import Callbacks

callbacks = Callbacks()


def layout(context):
    return html.Div("a page of toys")
"""
RULE = """
from overlapscope.rules.rule import Draft, Rule


def check(claims):
    yield Draft(title=f"This recording takes {claims.time(claims.judged_ns)}", detail="", advice="Make it short.")


RULE = Rule("long-recording", check, "info")
"""
MEASURE = """
import numpy as np

from overlapscope.catalog.measures import Amount, Measure


def longest_gap(sets, starts, ends):
    gaps = list(zip(*sets.idle))
    return np.array([
        max((min(stop, end) - max(begin, start) for begin, stop in gaps if begin < end and start < stop), default=0)
        for start, end in zip(starts, ends)
    ])


MEASURES = (
    Measure(
        id="longest_idle_gap_ns",
        groups=("overlap",),
        label="longest idle gap",
        meaning="longest time in which nothing ran",
        amount=Amount(("longest_idle_gap",)),
        length=longest_gap,
        joined="max",
        more_is_better=False,
        metric="longest_idle_gap_time",
        blames=("idle",),
    ),
)
"""
EXPLAINED = """
summary = "The recording is long."
meaning = "It takes time."
computation = "Its length."
"""
SOURCE = """
import overlapscope as ov


def read(path, request):
    return ov.load(path.read_text().split()[2])
"""


def install(folder: Path) -> dict[str, str]:
    """Install the package in a folder, and return the environment in which Python finds it."""
    package = folder / "toy"
    package.mkdir()
    parts = {"__init__": MANIFEST, "command": COMMAND, "page": PAGE, "rule": RULE, "measure": MEASURE, "source": SOURCE}
    for name, text in parts.items():
        (package / f"{name}.py").write_text(text)
    for name in ("explained", "examples"):
        (package / name).mkdir()
    (package / "explained" / "long-recording.toml").write_text(EXPLAINED)
    for word, program in (("wrong", "long()"), ("right", "short()")):
        (package / "examples" / f"long_recording_{word}.py").write_text(program)
    _register(folder, toy="toy:PLUGIN")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def _register(folder: Path, **places: str) -> None:
    metadata = folder / "toy-1.0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    lines = [f"[{GROUP}]" * bool(places), *(f"{name} = {place}" for name, place in places.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


Registered = Callable[..., None]
"""Function that registers plugins of other packages by name, instead of those before."""


@contextmanager
def registering(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registered]:
    """Yield a function that has this process find plugins of other packages, until the context ends."""
    monkeypatch.syspath_prepend(folder)

    def register(**places: str) -> None:
        _register(folder, **places)
        plugin.installed_plugins.cache_clear()

    yield register
    plugin.installed_plugins.cache_clear()
