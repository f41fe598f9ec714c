"""Whether a line of a program reads values that may as well come a step later: it merely adds, keeps or shows them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import cache

_READS = ("item", "float")
_SHOWN_BY = (
    *("print", "write", "log", "debug", "info", "warning", "log_metrics", "log_dict", "add_scalar", "add_scalars"),
    *("set_postfix", "set_postfix_str", "set_description"),
)
"""Functions and methods that show what they are given to a person."""
_KEPT_BY = ("append", "update")
"""Methods that keep what they are given: what becomes of it then is up to their object."""
_EMPTIED_BY = ("clear", "reset")
_TRANSPARENT = (ast.BinOp, ast.UnaryOp, ast.JoinedStr, ast.FormattedValue, ast.Dict, ast.List, ast.Tuple, ast.keyword)
"""What a value may be part of on its way there; so may rounding and formatting."""
_SHAPED_BY = ("float", "round", "str", "format", "exp", "sqrt", "sum", "len", "mean")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
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


def _why_needed(value: ast.expr, parents: dict[ast.AST, ast.AST], seen: frozenset[str] = frozenset()) -> str:
    """Follow it outwards, and where it gets a name or is added to one, all that is done with that name; empty where
    nothing but adding, keeping and showing is done.

    `seen`: names that are followed already.
    """
    node: ast.AST = value
    parent = parents[value]
    while _passes_on(parent, node):
        node, parent = parent, parents[parent]
    named: ast.expr | None = None
    if isinstance(parent, ast.Call):
        kept = node is not parent.func and _name(parent) in _KEPT_BY and isinstance(parent.func, ast.Attribute)
        touched = node is parent.func and _name(parent) in (*_KEPT_BY, *_EMPTIED_BY)
        if kept or touched or (node is not parent.func and _name(parent) in _SHOWN_BY):
            if not isinstance(parents[parent], ast.Expr):
                return "What is done with the value is used further."
            if not kept:
                return ""
            named = parent.func.value if isinstance(parent.func, ast.Attribute) else None
    elif isinstance(parent, ast.Assign | ast.AugAssign) and node is not parent.value:
        # A part of what is followed is set to something.
        return ""
    elif isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.Add | ast.Sub):
        named = parent.target
    elif isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        named = None if isinstance(parent.targets[0], ast.Subscript) else parent.targets[0]
    while isinstance(named, ast.Subscript):
        named = named.value
    if not isinstance(named, ast.Name | ast.Attribute):
        return f"Line {value.lineno} does more with the value than add, keep or show it."
    name = ast.unparse(named)
    uses = () if name in seen else _uses(named, parents)
    return next((why for use in uses if (why := _why_needed(use, parents, seen | {name}))), "")


def _passes_on(parent: ast.AST, node: ast.AST) -> bool:
    """Whether a value is but a part of what it is in."""
    if isinstance(parent, ast.Attribute | ast.Subscript):
        return node is parent.value
    shaped = isinstance(parent, ast.Call) and node is not parent.func and _name(parent) in _SHAPED_BY
    return shaped or isinstance(parent, _TRANSPARENT)


def _uses(named: ast.Name | ast.Attribute, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.expr]:
    """Where a name is read in its function, and an attribute, or a name that other functions share, in the file."""
    place: ast.AST = named
    while place in parents and (isinstance(named, ast.Attribute) or not isinstance(place, _FUNCTIONS)):
        place = parents[place]
    nodes = list(ast.walk(place))
    if isinstance(named, ast.Attribute):
        same = (one for one in nodes if isinstance(one, ast.Attribute) and one.attr == named.attr)
        yield from (one for one in same if isinstance(one.ctx, ast.Load) and one is not named)
        return
    if any(isinstance(one, ast.Global | ast.Nonlocal) and named.id in one.names for one in nodes):
        while place in parents:
            place = parents[place]
        nodes = list(ast.walk(place))
    for node in nodes:
        if isinstance(node, ast.Name) and node.id == named.id and isinstance(node.ctx, ast.Load) and node is not named:
            yield node


def _name(call: ast.Call) -> str:
    """The last part of what is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
