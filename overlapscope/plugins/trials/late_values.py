"""Lines of a program that read values which may come a step later, because they are only added, kept or shown."""

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
"""Functions and methods that show their arguments to a person."""
_KEPT_BY = ("append", "update")
"""Methods that keep their arguments; later uses are followed by the object."""
_EMPTIED_BY = ("clear", "reset")
_TRANSPARENT = (ast.BinOp, ast.UnaryOp, ast.JoinedStr, ast.FormattedValue, ast.Dict, ast.List, ast.Tuple, ast.keyword)
"""Expressions that pass a value on, besides rounding and formatting."""
_SHAPED_BY = ("float", "round", "str", "format", "exp", "sqrt", "sum", "len", "mean")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NO_SOURCE = "The program's source is not at hand."


def why_not(path: str, line: int) -> str:
    """Return a sentence on why the values read on this line must come at once; empty if they need not."""
    source = "".join(linecache.getlines(path))
    return why_not_in(source, line) if source else _NO_SOURCE


@cache
def why_not_in(source: str, line: int) -> str:
    """Return what `why_not` does, given the program's text."""
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
    """Return whether this is `x.item()`, `float(x)` or a value in the braces of a string."""
    return isinstance(node, ast.FormattedValue) or _name(node) in _READS


def _why_needed(value: ast.expr, parents: dict[ast.AST, ast.AST], seen: frozenset[str] = frozenset()) -> str:
    """Return why a value must come at once; empty if the program only adds, keeps and shows it.

    If the value gets a name, or is added to a name, every use of that name is followed, except for `seen` names.
    """
    fate = _fate(value, parents)
    if isinstance(fate, str):
        return fate
    while isinstance(fate, ast.Subscript):
        fate = fate.value
    if not isinstance(fate, ast.Name | ast.Attribute):
        return _more(value)
    name = ast.unparse(fate)
    uses = () if name in seen else _uses(fate, parents)
    return next((why for use in uses if (why := _why_needed(use, parents, seen | {name}))), "")


def _fate(value: ast.expr, parents: dict[ast.AST, ast.AST]) -> ast.expr | str:
    """Return the expression that holds a value next, or else why it must come at once; empty if it need not."""
    node: ast.AST = value
    parent = parents[value]
    while _passes_on(parent, node):
        node, parent = parent, parents[parent]
    if isinstance(parent, ast.Call):
        return _fate_in_call(value, node, parent, parents)
    if isinstance(parent, ast.Assign | ast.AugAssign) and node is not parent.value:
        # Only a part of the followed object is set.
        return ""
    if isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.Add | ast.Sub):
        return parent.target
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and not isinstance(parent.targets[0], ast.Subscript):
        return parent.targets[0]
    return _more(value)


def _fate_in_call(value: ast.expr, node: ast.AST, call: ast.Call, parents: dict[ast.AST, ast.AST]) -> ast.expr | str:
    """Return the fate of a value that is passed to a call, or whose own method is called."""
    function, name = call.func, _name(call)
    is_receiver = node is function
    kept = not is_receiver and name in _KEPT_BY and isinstance(function, ast.Attribute)
    harmless = name in (*_KEPT_BY, *_EMPTIED_BY) if is_receiver else kept or name in _SHOWN_BY
    if not harmless:
        return _more(value)
    if not isinstance(parents[call], ast.Expr):
        return "A result computed from the value is used further."
    return function.value if kept and isinstance(function, ast.Attribute) else ""


def _more(value: ast.expr) -> str:
    return f"Line {value.lineno} does more with the value than add, keep or show it."


def _passes_on(parent: ast.AST, node: ast.AST) -> bool:
    """Return whether a value is part of its parent expression."""
    if isinstance(parent, ast.Attribute | ast.Subscript):
        return node is parent.value
    shaped = isinstance(parent, ast.Call) and node is not parent.func and _name(parent) in _SHAPED_BY
    return shaped or isinstance(parent, _TRANSPARENT)


def _uses(name_node: ast.Name | ast.Attribute, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.expr]:
    """Yield the uses of a name in its function, or of an attribute or a shared name in the file."""
    place: ast.AST = name_node
    while place in parents and (isinstance(name_node, ast.Attribute) or not isinstance(place, _FUNCTIONS)):
        place = parents[place]
    nodes = list(ast.walk(place))
    if isinstance(name_node, ast.Attribute):
        same = (node for node in nodes if isinstance(node, ast.Attribute) and node.attr == name_node.attr)
        yield from (node for node in same if isinstance(node.ctx, ast.Load) and node is not name_node)
        return
    if any(isinstance(node, ast.Global | ast.Nonlocal) and name_node.id in node.names for node in nodes):
        while place in parents:
            place = parents[place]
        nodes = list(ast.walk(place))
    for node in nodes:
        if (
            isinstance(node, ast.Name)
            and node.id == name_node.id
            and isinstance(node.ctx, ast.Load)
            and node is not name_node
        ):
            yield node


def _name(call: ast.Call) -> str:
    """Return the last part of the called name."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
