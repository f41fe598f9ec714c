"""Whether a line of a program reads values that may as well come a step later: it merely adds, keeps or shows them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import cache

_READS = ("item", "float")
_SHOWN_BY = (
    *("print", "append", "update", "write", "log", "debug", "info", "warning", "log_metrics", "log_dict"),
    *("add_scalar", "add_scalars", "set_postfix", "set_postfix_str", "set_description"),
)
"""Functions and methods that keep what they are given, or show it to a person."""
_TRANSPARENT = (ast.BinOp, ast.UnaryOp, ast.JoinedStr, ast.FormattedValue, ast.Dict, ast.List, ast.Tuple, ast.keyword)
"""What a value may be part of on its way there; so may rounding and formatting."""
_SHAPED_BY = ("float", "round", "str", "format", "exp", "sqrt")
_NO_SOURCE = "The program's source is not at hand."


def why_not(path: str, line: int) -> str:
    """Why what this line of a file reads must come at once: a sentence; empty where it need not."""
    source = "".join(linecache.getlines(path))
    return why_not_in(source, line) if source else _NO_SOURCE


@cache
def why_not_in(source: str, line: int) -> str:
    """The same of a program's text."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return _NO_SOURCE
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.FormattedValue)]
    reads = [node for node in calls if _reads(node) and node.lineno <= line <= (node.end_lineno or 0)]
    if not reads:
        return "The line shows no `.item()` or `float()`."
    return next((why for read in reads if (why := _why_needed(read, parents))), "")


def _reads(node: ast.Call | ast.FormattedValue) -> bool:
    """`x.item()`, `float(x)` or a value in the braces of a string."""
    return isinstance(node, ast.FormattedValue) or _name(node) in _READS


def _why_needed(value: ast.expr, parents: dict[ast.AST, ast.AST], *, named: bool = False) -> str:
    """Follow it outwards, and where it gets a name, that name; empty where nothing but showing and adding is done."""
    node: ast.AST = value
    parent = parents[value]
    while isinstance(parent, _TRANSPARENT) or (isinstance(parent, ast.Call) and _name(parent) in _SHAPED_BY):
        node, parent = parent, parents[parent]
    if isinstance(parent, ast.Call) and node is not parent.func and _name(parent) in _SHOWN_BY:
        return "" if isinstance(parents[parent], ast.Expr) else "What is done with the value is used further."
    if isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.Add | ast.Sub):
        return ""
    if isinstance(parent, ast.Assign) and not named and isinstance(parent.targets[0], ast.Name):
        uses = list(_uses(parent.targets[0].id, parent, parents))
        return next((why for use in uses if (why := _why_needed(use, parents, named=True))), "")
    return f"Line {value.lineno} does more with the value than add, keep or show it."


def _uses(name: str, place: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.Name]:
    """Where it is read, in the function that a place is in."""
    while place in parents and not isinstance(place, ast.FunctionDef | ast.AsyncFunctionDef):
        place = parents[place]
    for node in ast.walk(place):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            yield node


def _name(call: ast.Call) -> str:
    """The last part of what is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
