"""Tests of our own source that ruff doesn't cover."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "overlapscope"
MOST_LINES = 60


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions in a module, or in a statement of it; no expression holds one."""
    for statement in ast.iter_child_nodes(node):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        if isinstance(statement, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from functions(statement)


def test_no_function_is_longer_than_a_screen() -> None:
    longer = {
        f"{file.relative_to(PACKAGE).as_posix()}: {node.name}"
        for file in PACKAGE.rglob("*.py")
        for node in functions(ast.parse(file.read_bytes()))
        if node.end_lineno is not None and node.end_lineno - node.lineno >= MOST_LINES
    }
    assert longer == set()
