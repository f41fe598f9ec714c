"""What ruff does not check of our own source."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "overlapscope"
MOST_LINES = 60

STILL_LONGER = {
    "analysis/device.py: analyze_device",
    "commands/run.py: prepare_parser",
    "compare/figures.py: compare",
    "dashboard/pages/hta.py: register",
    "dashboard/pages/ranks.py: register",
    "dashboard/pages/whatif.py: register",
    "dashboard/shell.py: register",
    "ranks/notes.py: notes",
    "recorder/recording.py: __init__",
}


def test_no_function_is_longer_than_a_screen() -> None:
    longer = {
        f"{file.relative_to(PACKAGE).as_posix()}: {node.name}"
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MOST_LINES
    }
    assert longer <= STILL_LONGER
