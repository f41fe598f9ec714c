"""Options given to calls in the text of a program: everything else of the text stays as it is, byte for byte."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import libcst as cst
from libcst import matchers as m
from libcst.metadata import (
    Assignment,
    CodeRange,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedName,
    QualifiedNameSource,
    ScopeProvider,
)

from overlapscope.trials.calls import Options, Unclear

_F: Final = cst.Name("f")

Change: TypeAlias = Callable[[Any], Any]
"""What becomes of a node."""


@dataclass(frozen=True, slots=True)
class Wish:
    """An edit of a call."""

    line: int | None
    """Of the file; None if it is the only such call there."""
    callee: str
    """The full name of a function, `torch.utils.data.DataLoader`, or the name of a method, `to`."""
    change: Callable[[cst.Call], cst.Call]
    """Raises Unclear."""

    @property
    def is_method(self) -> bool:
        return "." not in self.callee

    @property
    def several(self) -> bool:
        """Where there are several such calls with the same arguments, all may be edited: what another one copies to
        that device does not mind."""
        return self.callee in ("to", "cuda") and isinstance(self.change, Options)


@dataclass(frozen=True, slots=True)
class Compile:
    """A module that is called on a line is compiled in place, before the loop that it is called in."""

    line: int
    name: str
    """Its class."""
    mode: str


def rewrite(source: bytes, wishes: Sequence[Wish | Compile | None]) -> tuple[bytes, list[str]]:
    """The text with an edit made of each wish, and why one could not be made, in a clause: empty where it could.

    Raises Unclear where the text is not Python.
    """
    try:
        module = cst.parse_module(source)
    except (cst.ParserSyntaxError, SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise Unclear("the file cannot be parsed") from error
    program = _Program(module)
    changes: dict[cst.CSTNode, list[Change]] = {}
    reasons = []
    for wish in wishes:
        try:
            for node, change in program.changes(wish) if wish else ():
                changes.setdefault(node, []).append(change)
            reasons.append("")
        except Unclear as unclear:
            reasons.append(str(unclear))
    return module.visit(_Changes(changes)).bytes, reasons


class _Changes(cst.CSTTransformer):
    """Nodes are replaced by what becomes of them."""

    def __init__(self, changes: dict[cst.CSTNode, list[Change]]) -> None:
        super().__init__()
        self._changes = changes

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> Any:
        return functools.reduce(lambda node, change: change(node), self._changes.get(original_node, ()), updated_node)


class _Program:
    """The calls of a text, by line and name."""

    def __init__(self, module: cst.Module) -> None:
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self._places = wrapper.resolve(PositionProvider)
        self._scopes = wrapper.resolve(ScopeProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._calls = [cst.ensure_type(node, cst.Call) for node in m.findall(wrapper, m.Call())]
        assigns = [cst.ensure_type(node, cst.Assign) for node in m.findall(wrapper, m.Assign())]
        self._bound = [(target.target, one.value) for one in assigns for target in one.targets]

    def changes(self, wish: Wish | Compile) -> list[tuple[cst.CSTNode, Change]]:
        """What becomes of which nodes. Raises Unclear."""
        if isinstance(wish, Compile):
            return [self._compiled(self._module(wish), wish.mode)]
        calls = self._find(wish)
        for call in calls:
            wish.change(call)
        return [(call, wish.change) for call in calls]

    def _find(self, wish: Wish) -> list[cst.Call]:
        calls = [call for call in self._calls if self._is_meant(call, wish)]
        if wish.line is not None:
            calls = [call for call in calls if self._line(call) == wish.line]
        name = wish.callee.rpartition(".")[2]
        if not calls:
            raise Unclear(f"no `{name}(` is found there")
        if len(calls) > 1 and not (wish.several and len({code(call.with_changes(func=_F)) for call in calls}) == 1):
            raise Unclear(f"there are several `{name}(`")
        if wish.is_method and any(self._moves_anything(call) for call in calls):
            raise Unclear("the function there may move other things, too")
        return calls

    def _module(self, wish: Compile) -> cst.Name | cst.Attribute:
        """What is called on its line. Raises Unclear."""
        calls = [call for call in self._calls if self._line(call) == wish.line]
        found = {
            code(call.func): call.func for call in calls if _is_dotted(call.func) and not self._is_foreign(call.func)
        }
        if len(found) > 1:
            made = self._made(wish.name)
            found = {name: module for name, module in found.items() if name in made}
        if len(found) != 1:
            raise Unclear("which name the module has there is not clear")
        [module] = found.values()
        return cast("cst.Name | cst.Attribute", module)

    def _is_foreign(self, function: cst.BaseExpression) -> bool:
        """It is imported or built in."""
        return any(found.source is not QualifiedNameSource.LOCAL for found in self._full_names(function))

    def _full_names(self, node: cst.BaseExpression) -> Collection[QualifiedName]:
        """What it may be, with its package where that is known; nothing where it is not bound here."""
        scope = self._scopes.get(node)
        return scope.get_qualified_names_for(node) if scope else ()

    def _made(self, name: str) -> set[str]:
        """What is bound to something of a class."""
        made = m.Call(func=m.Name(name) | m.Attribute(attr=m.Name(name)))
        return {code(target) for target, value in self._bound if m.findall(value, made)}

    def _compiled(self, module: cst.Name | cst.Attribute, mode: str) -> tuple[cst.CSTNode, Change]:
        """What compiles it: a statement before the outermost loop around its call in which its name is not bound, or,
        where its function has no loop, behind the only line that binds it. Raises Unclear."""
        name = code(module)
        statement = cst.ensure_type(cst.parse_statement(f'{name}.compile(mode="{mode}")'), cst.SimpleStatementLine)
        scope = self._scopes.get(module)
        roots = [one.node for one in scope[name.partition(".")[0]] if isinstance(one, Assignment)] if scope else []
        targets = [target for target, _ in self._bound if code(target) == name]
        lines = [self._places[node].start.line for node in (*roots, *targets)]
        around = itertools.takewhile(lambda node: not isinstance(node, cst.FunctionDef), self._parents_of(module))
        loops = [node for node in around if isinstance(node, cst.For | cst.While)]
        for loop in reversed(loops):
            if not any(_holds(self._places[loop], line) for line in lines):
                return loop, functools.partial(_before, statement)
        if loops:
            raise Unclear(f"`{name}` is bound in the loop")
        passed = any(isinstance(node, cst.Param) for node in roots)
        if len(targets) != 1 or not self._is_made_before(module, targets[0], passed):
            raise Unclear("the function there has no loop")
        line = next(node for node in self._parents_of(targets[0]) if isinstance(node, cst.SimpleStatementLine))
        return line, lambda line: cst.FlattenSentinel([line, statement])

    def _is_made_before(self, module: cst.CSTNode, target: cst.CSTNode, passed: bool) -> bool:
        """Whether a name is bound once for many calls: by the class, where it is an attribute of what is passed to the
        function, or else around the function."""
        here, there = list(self._parents_of(module)), list(self._parents_of(target))
        binder = _nearest(there, cst.FunctionDef)
        if binder is _nearest(here, cst.FunctionDef):
            return False
        if passed:
            kind = _nearest(here, cst.ClassDef)
            return kind is not None and kind is _nearest(there, cst.ClassDef)
        return binder is None or binder in here

    def _parents_of(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        while not isinstance(node, cst.Module):
            node = self._parents[node]
            yield node

    def _is_meant(self, call: cst.Call, wish: Wish) -> bool:
        package, _, name = wish.callee.rpartition(".")
        if wish.is_method:
            return m.matches(call.func, m.Attribute(attr=m.Name(name)))
        if full_names := [found.name for found in self._full_names(call.func)]:
            # It may be imported from the module that defines it: `torch.optim.adamw.AdamW`.
            return any(full.startswith(f"{package}.") and full.endswith(f".{name}") for full in full_names)
        return m.matches(call.func, m.Name(name))

    def _line(self, call: cst.Call) -> int:
        """The line that a frame is at in this call."""
        return self._places[call.func.attr if isinstance(call.func, cst.Attribute) else call].start.line

    def _moves_anything(self, call: cst.Call) -> bool:
        """It stands in a function whose parameters say both what is moved and where."""
        around = list(self._parents_of(call))
        function = next((node for node in around if isinstance(node, cst.FunctionDef | cst.Lambda)), None)
        if function is None:
            return False
        parameters = {cst.ensure_type(one, cst.Param).name.value for one in m.findall(function.params, m.Param())}
        where = {name for arg in call.args for name in _names(arg.value)}
        what = _names(cst.ensure_type(call.func, cst.Attribute).value)
        inside = around[: around.index(function)]
        handed_on = isinstance(function, cst.Lambda) or any(isinstance(node, cst.Return) for node in inside)
        return bool(where & parameters) and (handed_on or bool(what & parameters))


def _nearest(nodes: Iterable[cst.CSTNode], kind: type[cst.CSTNode]) -> cst.CSTNode | None:
    return next((node for node in nodes if isinstance(node, kind)), None)


def _holds(place: CodeRange, line: int) -> bool:
    return place.start.line <= line <= place.end.line


def _names(node: cst.CSTNode) -> set[str]:
    return {cst.ensure_type(one, cst.Name).value for one in m.findall(node, m.Name())}


def code(node: cst.CSTNode) -> str:
    """The node's text."""
    return cst.Module([]).code_for_node(node)


def _is_dotted(node: cst.BaseExpression) -> bool:
    """It is a name, or a name and attributes."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def _before(statement: cst.BaseStatement, loop: cst.For | cst.While) -> cst.FlattenSentinel[cst.BaseStatement]:
    """The statement and the loop, with the loop's comments still at the loop."""
    lines = list(loop.leading_lines)
    blank = list(itertools.takewhile(lambda line: line.comment is None, lines))
    rest = loop.with_changes(leading_lines=lines[len(blank) :])
    return cst.FlattenSentinel([statement.with_changes(leading_lines=blank), rest])
