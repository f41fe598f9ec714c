"""What ruff does not check of our own source."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "overlapscope"
MOST_LINES = 60


def test_no_function_is_longer_than_a_screen() -> None:
    longer = {
        f"{file.relative_to(PACKAGE).as_posix()}: {node.name}"
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MOST_LINES
    }
    assert longer == set()
