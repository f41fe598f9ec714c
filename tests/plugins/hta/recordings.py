"""Recordings for the tests that hold HTA's results on our object to HTA's on its own."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRACES = Path(__file__).parents[3] / "traces"


def document(name: str) -> dict[str, Any]:
    """Return a bundled recording."""
    document: dict[str, Any] = json.loads(gzip.decompress((TRACES / f"{name}.json.gz").read_bytes()))
    return document


def rewritten(
    name: str,
    folder: Path,
    *,
    whole_us: bool = True,
    change: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda event: event,
) -> Path:
    """Return a copy, by default on whole microseconds. `change` may alter each event or, by returning None, drop it."""
    content = document(name)
    kept = []
    for event in content["traceEvents"]:
        if whole_us and "ts" in event:
            event["ts"] = math.floor(event["ts"])
        if whole_us and "dur" in event:
            event["dur"] = math.ceil(event["dur"])
        if (changed := change(event)) is not None:
            kept.append(changed)
    path = folder / f"{name.replace('/', '_')}.json"
    path.write_text(json.dumps(content | {"traceEvents": kept}))
    return path
