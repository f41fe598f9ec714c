"""Options given to calls in the text of a program: everything else of the text stays as it is, byte for byte."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

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

Change: TypeAlias = Callable[[Any], Any]
"""What becomes of a node."""


class Unclear(Exception):
    """Where an edit is to be made cannot be said for sure; the text is a clause that says why."""


@dataclass(frozen=True, slots=True)
class Callee:
    """Which calls are meant: of a function of this full name, or of a method of this name."""

    name: str
    """`torch.utils.data.DataLoader`; of a method its own name alone: `to`."""

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def is_method(self) -> bool:
        return self.last == self.name


@dataclass(frozen=True, slots=True)
class Options:
    """A call gets `set` as keywords with Python expressions; those in `instead_of` go."""

    set: tuple[tuple[str, str], ...]
    instead_of: tuple[str, ...] = ()
    positional: int = 1 << 30
    """So many arguments passed by position may already hold one of them."""

    def __call__(self, call: cst.Call) -> cst.Call:
        if any(arg.star for arg in call.args):
            raise Unclear("its options are passed with a star")
        if sum(arg.keyword is None for arg in call.args) >= self.positional:
            raise Unclear("its options are passed by position")
        for name in self.instead_of:
            call = _without(call, name)
        for name, value in self.set:
            call = _with(call, name, cst.parse_expression(value))
        return call


def pinned_receiver(call: cst.Call) -> cst.Call:
    """`x.to(...)` becomes `x.pin_memory().to(...)`."""
    function = cst.ensure_type(call.func, cst.Attribute)
    return call.with_changes(func=function.with_changes(value=_pinned(function.value)))


def pinned_argument(call: cst.Call) -> cst.Call:
    """`y.copy_(x)` becomes `y.copy_(x.pin_memory())`."""
    if not call.args or call.args[0].star or call.args[0].keyword:
        raise Unclear("its source is not its first argument")
    first, *others = call.args
    return call.with_changes(args=[first.with_changes(value=_pinned(first.value)), *others])


@dataclass(frozen=True, slots=True)
class Wish:
    """An edit of the call on a line; of the only such call of the file where no line is given."""

    line: int | None
    callee: Callee
    change: Callable[[cst.Call], cst.Call]
    alike: bool = False
    """Several such calls on the line are all changed, if their arguments are the same."""
    mover: bool = True
    """A function that moves whatever it is given to wherever it is told, by this call, may be edited."""


@dataclass(frozen=True, slots=True)
class Compile:
    """A module that is called on a line is compiled in place, before the loop that it is called in."""

    line: int
    name: str
    """Its class."""
    mode: str


def rewrite(source: bytes, wishes: Sequence[Sequence[Wish | Compile]]) -> tuple[bytes, list[str]]:
    """The text with an edit made of each wish: the first of its ways that can be told; and why none could: empty where
    one could.

    Raises Unclear where the text is not Python.
    """
    try:
        module = cst.parse_module(source)
    except (cst.ParserSyntaxError, UnicodeDecodeError, LookupError) as error:
        raise Unclear("the file cannot be parsed") from error
    program = _Program(module)
    changes: dict[cst.CSTNode, list[Change]] = {}
    reasons = []
    for ways in wishes:
        reason = ""
        for wish in ways:
            try:
                for node, change in program.changes(wish):
                    changes.setdefault(node, []).append(change)
                reason = ""
                break
            except Unclear as unclear:
                reason = reason or str(unclear)
        reasons.append(reason)
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
            module = self._module(wish)
            statement = f'{cst.Module([]).code_for_node(module)}.compile(mode="{wish.mode}")'
            return [(self._loop(module), functools.partial(_before, cst.parse_statement(statement)))]
        calls = self._find(wish)
        for call in calls:
            wish.change(call)
        return [(call, wish.change) for call in calls]

    def _find(self, wish: Wish) -> list[cst.Call]:
        calls = [call for call in self._calls if self._is_of(call, wish.callee)]
        if wish.line is not None:
            calls = [call for call in calls if _holds(self._places[call], wish.line)]
            if len(calls) > 1:
                calls = [call for call in calls if self._line(call) == wish.line]
        if not calls:
            raise Unclear(f"no `{wish.callee.last}(` is found there")
        if len(calls) > 1 and not (
            wish.alike and len({code(call.with_changes(func=cst.Name("f"))) for call in calls}) == 1
        ):
            raise Unclear(f"there are several `{wish.callee.last}(`")
        if not wish.mover and any(self._moves_anything(call) for call in calls):
            raise Unclear("the function may move other things, too")
        return calls

    def _module(self, wish: Compile) -> cst.Name | cst.Attribute:
        """What is called on its line. Raises Unclear."""
        calls = [call for call in self._calls if _holds(self._places[call], wish.line)]
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

    def _loop(self, module: cst.Name | cst.Attribute) -> cst.For | cst.While:
        """The outermost loop around a call of the module in which its name is not bound. Raises Unclear."""
        loops: list[cst.For | cst.While] = []
        node: cst.CSTNode = module
        while not isinstance(node, cst.FunctionDef | cst.Lambda | cst.Module):
            node = self._parents[node]
            if isinstance(node, cst.For | cst.While):
                loops.append(node)
        if not loops:
            raise Unclear("the function has no loop")
        scope, name = self._scopes.get(module), code(module)
        roots = scope[name.partition(".")[0]] if scope else ()
        bound = [self._places[one.node] for one in roots if isinstance(one, Assignment)]
        bound += [self._places[target] for target, _ in self._bound if code(target) == name]
        for loop in reversed(loops):
            place = self._places[loop]
            if not any(place.start.line <= one.start.line <= place.end.line for one in bound):
                return loop
        raise Unclear(f"`{name}` is bound in the loop")

    def _is_of(self, call: cst.Call, callee: Callee) -> bool:
        if callee.is_method:
            return m.matches(call.func, m.Attribute(attr=m.Name(callee.name)))
        if names := [found.name for found in self._full_names(call.func)]:
            # A name may be that of the module that defines it: `torch.optim.adamw.AdamW`.
            package = callee.name.rpartition(".")[0]
            return any(name.startswith(f"{package}.") and name.endswith(f".{callee.last}") for name in names)
        return m.matches(call.func, m.Name(callee.last))

    def _line(self, call: cst.Call) -> int:
        """The line that a frame is at in this call."""
        return self._places[call.func.attr if isinstance(call.func, cst.Attribute) else call].start.line

    def _moves_anything(self, call: cst.Call) -> bool:
        """A function's parameters say both what is moved and where."""
        node: cst.CSTNode = call
        returned = False
        while not isinstance(node, cst.FunctionDef | cst.Lambda | cst.Module):
            returned |= isinstance(node, cst.Return)
            node = self._parents[node]
        if isinstance(node, cst.Module):
            return False
        parameters = {cst.ensure_type(one, cst.Param).name.value for one in m.findall(node.params, m.Param())}
        where = {name for arg in call.args for name in _names(arg.value)}
        what = _names(cst.ensure_type(call.func, cst.Attribute).value)
        return bool(where & parameters) and (returned or isinstance(node, cst.Lambda) or bool(what & parameters))


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


def _pinned(tensor: cst.BaseExpression) -> cst.Call:
    simple = cst.Name | cst.Attribute | cst.Subscript | cst.Call
    if not isinstance(tensor, simple) and not tensor.lpar:
        tensor = tensor.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.Call(cst.Attribute(tensor, cst.Name("pin_memory")))


# -- arguments ---------------------------------------------------------------------------------------


def _without(call: cst.Call, name: str) -> cst.Call:
    """The call without that option; what stood behind the last argument stands behind the last one then."""
    at = next((i for i, arg in enumerate(call.args) if arg.keyword and arg.keyword.value == name), None)
    if at is None:
        return call
    args = list(call.args)
    gone = args.pop(at)
    if at == len(args) and args:
        args[-1] = args[-1].with_changes(comma=gone.comma, whitespace_after_arg=gone.whitespace_after_arg)
    return call.with_changes(args=args)


def _with(call: cst.Call, name: str, value: cst.BaseExpression) -> cst.Call:
    """The call with that option, in the style of its other arguments."""
    args = list(call.args)
    for i, arg in enumerate(args):
        if arg.keyword and arg.keyword.value == name:
            args[i] = arg.with_changes(value=value)
            return call.with_changes(args=args)
    bare = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    new = cst.Arg(value, cst.Name(name), bare)
    if not args:
        return call.with_changes(args=[new])
    last = args[-1]
    if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
        last = last.with_changes(value=last.value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()]))
    between = _between(call)
    if isinstance(last.comma, cst.Comma):
        behind = last.comma.whitespace_after
        new = new.with_changes(comma=last.comma.with_changes(whitespace_after=_uncommented(behind)))
    else:
        behind = last.whitespace_after_arg
        new = new.with_changes(whitespace_after_arg=_uncommented(behind))
    if isinstance(behind, cst.ParenthesizedWhitespace) and isinstance(between, cst.ParenthesizedWhitespace):
        # Comments behind the last argument stay there.
        between = behind.with_changes(indent=between.indent, last_line=between.last_line)
    comma = cst.Comma(whitespace_after=between)
    args[-1] = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*args, new])


def _between(call: cst.Call) -> cst.BaseParenthesizableWhitespace:
    """What separates its arguments: a blank, or a new line with the indentation of the last one."""
    if len(call.args) > 1 and isinstance(comma := call.args[-2].comma, cst.Comma):
        return _uncommented(comma.whitespace_after)
    if isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        return _uncommented(call.whitespace_before_args)
    return cst.SimpleWhitespace(" ")


def _uncommented(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    line = space.first_line.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
    return space.with_changes(first_line=line, empty_lines=[])
