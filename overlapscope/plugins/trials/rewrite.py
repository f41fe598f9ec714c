"""Edits of calls in the text of a program; the rest of the text stays the same, byte for byte.

A call gets new options in the style of the others, or a pinned tensor. Libraries that run the training loop have
options of their own for some changes.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import libcst as cst
from libcst.metadata import (
    Assignment,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedName,
    QualifiedNameSource,
    ScopeProvider,
)
from msgspec import Struct

from overlapscope.plugins.trials.changes import COMPILE_MODES


class Unclear(Exception):
    """An edit that can't be determined for certain; the text is a clause with the reason."""


class CallOptions(Struct, frozen=True):
    """Keywords to add to a call, each with a Python expression; they replace options of the same names."""

    given: tuple[tuple[str, str], ...]
    instead_of: str = ""
    """Keyword to remove."""
    positional: int = 2
    """Minimum number of positional arguments that may already include such an option."""
    replaced: bool = True
    """True if existing options of these names may be replaced."""

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.given)

    def __call__(self, call: cst.Call) -> cst.Call:
        """Return the call with the options.

        Raises:
            Unclear: The call can't be edited for certain.
        """
        if any(arg.star for arg in call.args):
            raise Unclear("the call's options are passed with a star")
        if sum(arg.keyword is None for arg in call.args) >= self.positional:
            raise Unclear("the call's options are passed by position")
        call = _without(call, self.instead_of)
        for name, value in self.given:
            if not self.replaced and _index(call, name) is not None:
                raise Unclear(f"the call has a `{name}` already")
            call = _with(call, name, cst.parse_expression(value))
        return call


def pinned_receiver(call: cst.Call) -> cst.Call:
    """Return `x.pin_memory().to(...)` for `x.to(...)`."""
    if len(call.args) > 1 + sum(arg.keyword is not None and arg.keyword.value == "non_blocking" for arg in call.args):
        # Torch would change the type in a copy that is not pinned.
        raise Unclear("the copy changes the type, too")
    function = cst.ensure_type(call.func, cst.Attribute)
    return call.with_changes(func=function.with_changes(value=_pinned(function.value)))


def pinned_argument(call: cst.Call) -> cst.Call:
    """Return `y.copy_(x.pin_memory())` for `y.copy_(x)`."""
    if not call.args or call.args[0].star or call.args[0].keyword:
        raise Unclear("its source is not its first argument")
    first, *others = call.args
    return call.with_changes(args=[first.with_changes(value=_pinned(first.value)), *others])


def _pinned(tensor: cst.BaseExpression) -> cst.Call:
    simple = cst.Name | cst.Attribute | cst.Subscript | cst.Call
    if not isinstance(tensor, simple) and not tensor.lpar:
        tensor = tensor.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.Call(cst.Attribute(tensor, cst.Name("pin_memory")))


def _index(call: cst.Call, name: str) -> int | None:
    return next((i for i, arg in enumerate(call.args) if arg.keyword and arg.keyword.value == name), None)


def _without(call: cst.Call, name: str) -> cst.Call:
    """Return the call without an option; text after the last argument stays at the end."""
    at = _index(call, name)
    if at is None:
        return call
    args = list(call.args)
    gone = args.pop(at)
    if at == len(args) and args:
        args[-1] = args[-1].with_changes(comma=gone.comma, whitespace_after_arg=gone.whitespace_after_arg)
    return call.with_changes(args=args)


def _with(call: cst.Call, name: str, value: cst.BaseExpression) -> cst.Call:
    """Return the call with an option, in the style of its other arguments."""
    args = list(call.args)
    at = _index(call, name)
    if at is not None:
        args[at] = args[at].with_changes(value=value)
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
    if isinstance(behind, cst.ParenthesizedWhitespace):
        # Comments after the last argument stay there.
        if isinstance(between, cst.ParenthesizedWhitespace):
            between = behind.with_changes(indent=between.indent, last_line=between.last_line)
        elif behind.first_line.comment or any(line.comment for line in behind.empty_lines):
            between = behind
    comma = cst.Comma(whitespace_after=between)
    args[-1] = last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*args, new])


def _between(call: cst.Call) -> cst.BaseParenthesizableWhitespace:
    """Return the separator of its arguments: a blank, or a new line with the last argument's indentation."""
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


DATA_LOADER: Final = "torch.utils.data.DataLoader"
TRAINING_ARGUMENTS: Final = "transformers.TrainingArguments"


def workers(value: str) -> CallOptions:
    """Return the DataLoader options for this many workers."""
    return CallOptions((("num_workers", value), ("persistent_workers", "True")), positional=6)


PIN: Final = CallOptions((("pin_memory", "True"),), positional=8)
"""DataLoader options for pinned batches."""


def training_arguments(value: str) -> dict[str, CallOptions]:
    """Return the options of `TrainingArguments` for each change that has any, with this value."""
    changes = {
        "workers": CallOptions((("dataloader_num_workers", value), ("dataloader_persistent_workers", "True"))),
        "pin": CallOptions((("dataloader_pin_memory", "True"),)),
        "non-blocking": CallOptions((("accelerator_config", '{"non_blocking": True}'),), replaced=False),
        "fused": CallOptions((("optim", '"adamw_torch_fused"'),)),
    }
    if value in COMPILE_MODES:
        mode = ("torch_compile_mode", f'"{COMPILE_MODES[value]}"')
        changes["graph"] = CallOptions((("torch_compile", "True"), mode))
    return changes


# -- Names and places --------------------------------------------------------------------------------


_F: Final = cst.Name("f")

Node = TypeVar("Node", bound=cst.CSTNode)


class Wish(Struct, frozen=True):
    """An edit of a call."""

    line: int | None
    """Line in the file; None for the only such call there."""
    callee: str
    """Full name of a function, `torch.utils.data.DataLoader`, or the name of a method, `to`."""
    change: Callable[[cst.Call], cst.Call]
    """Function that edits the call. May raise Unclear."""

    @property
    def is_method(self) -> bool:
        return "." not in self.callee

    @property
    def several(self) -> bool:
        """True if several such calls with the same arguments may all be edited: the option harms none of them."""
        return self.callee in ("to", "cuda") and isinstance(self.change, CallOptions)


class Compile(Struct, frozen=True):
    """Compilation of a module in place, before the loop that calls it."""

    line: int
    name: str
    """Class name."""
    mode: str
    of_torch: bool
    """True if its class is torch's own."""

    def statement(self, module: str) -> str:
        """Return the statement that compiles the module."""
        mode = "" if self.mode == "default" else f'mode="{self.mode}"'
        if self.of_torch:
            return f"{module}.forward = torch.compile({', '.join(filter(None, (f'{module}.forward', mode)))})"
        return f"{module}.compile({mode})"


def rewrite(source: bytes, wishes: Sequence[Sequence[Wish | Compile]]) -> tuple[bytes, list[str]]:
    """Return the text with the first clear edit of each wish's alternatives, and why each wish failed.

    The reason is that of the last alternative, in a clause; empty for a wish that is fulfilled or has no alternatives.

    Raises:
        Unclear: The text is not Python.
    """
    try:
        module = cst.parse_module(source)
    except (cst.ParserSyntaxError, SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise Unclear("the file cannot be parsed") from error
    program = _ProgramText(module)
    changes = _Changes()
    reasons = []
    for ways in wishes:
        unclear = ""
        for way in ways:
            try:
                program.add(way, changes)
                unclear = ""
                break
            except Unclear as error:
                unclear = str(error)
        reasons.append(unclear)
    return module.visit(changes).bytes, reasons


class _Changes(cst.CSTTransformer):
    """Collects and makes the changes to nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: defaultdict[cst.CSTNode, list[Callable[[cst.Call], cst.Call]]] = defaultdict(list)
        self.statements: defaultdict[cst.CSTNode, dict[str, None]] = defaultdict(dict)
        """Statements to add before a loop, or after any other statement."""

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802
        for change in self.calls.get(original_node, ()):
            updated_node = change(updated_node)
        return updated_node

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> Any:
        node = super().on_leave(original_node, updated_node)
        if original_node not in self.statements:
            return node
        new = [cst.parse_statement(text) for text in self.statements[original_node]]
        if not isinstance(node, cst.For | cst.While):
            return cst.FlattenSentinel([node, *new])
        # The loop's comments stay with the loop.
        lines = list(node.leading_lines)
        blank = list(itertools.takewhile(lambda line: line.comment is None, lines))
        new[0] = new[0].with_changes(leading_lines=blank)
        return cst.FlattenSentinel([*new, node.with_changes(leading_lines=lines[len(blank) :])])


class _ProgramText:
    """The calls of a program's text, by line and name."""

    def __init__(self, module: cst.Module) -> None:
        wrapper = self._wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self._places = wrapper.resolve(PositionProvider)
        self._scopes = wrapper.resolve(ScopeProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._calls = self._all(cst.Call)
        self._bound = [
            *((target.target, node.value) for node in self._all(cst.Assign) for target in node.targets),
            *((node.target, node.value) for node in self._all(cst.AnnAssign) if node.value),
        ]
        """Targets of assignments, with their values."""
        names = (name for node in self._all(cst.Import) for name in node.names if not name.asname)
        self._imported = {name.evaluated_name for name in names}

    def add(self, wish: Wish | Compile, changes: _Changes) -> None:
        """Add the changes for a wish. Raises Unclear."""
        if isinstance(wish, Compile):
            module = self._module(wish)
            if wish.of_torch and "torch" not in self._imported:
                raise Unclear("the file does not `import torch`")
            changes.statements[self._place(module)][wish.statement(code(module))] = None
            return
        calls = self._find(wish)
        for call in calls:
            wish.change(call)
        for call in calls:
            changes.calls[call].append(wish.change)

    def _find(self, wish: Wish) -> list[cst.Call]:
        calls = [call for call in self._calls if self._is_meant(call, wish)]
        if wish.line is not None:
            calls = [call for call in calls if self._line(call) == wish.line]
        name, where = wish.callee.rpartition(".")[2], "in the file" if wish.line is None else "on that line"
        if not calls:
            raise Unclear(f"there is no `{name}(` {where}")
        if len(calls) > 1 and not (wish.several and len({code(call.with_changes(func=_F)) for call in calls}) == 1):
            raise Unclear(f"there are several `{name}(` {where}")
        if wish.is_method and any(self._moves_anything(call) for call in calls):
            raise Unclear("the function there may move other things, too")
        return calls

    def _module(self, wish: Compile) -> cst.BaseExpression:
        """Return the module that is called on the line. Raises Unclear."""
        names = [call.func for call in self._calls if self._line(call) == wish.line and _is_dotted(call.func)]
        candidates = {code(name): name for name in names if not self._is_function(name)}
        if len(candidates) > 1:
            names_of_class = self._instances(wish.name)
            candidates = {name: module for name, module in candidates.items() if name in names_of_class}
        if len(candidates) != 1:
            raise Unclear("the module's name there is unclear")
        return next(iter(candidates.values()))

    def _is_function(self, name: cst.BaseExpression) -> bool:
        """Return whether a name is imported, built in, or defined in the file."""
        foreign = any(full_name.source is not QualifiedNameSource.LOCAL for full_name in self._full_names(name))
        return foreign or any(isinstance(node, cst.FunctionDef | cst.ClassDef) for node in self._bindings(name))

    def _full_names(self, node: cst.BaseExpression) -> Collection[QualifiedName]:
        """Return the possible full names of an expression, with the package if known; empty for unbound names."""
        scope = self._scopes.get(node)
        return scope.get_qualified_names_for(node) if scope else ()

    def _bindings(self, name: cst.BaseExpression) -> list[cst.CSTNode]:
        """Return the nodes that bind a name, or the first part of a dotted name."""
        scope = self._scopes.get(name)
        assignments = scope[code(name).partition(".")[0]] if scope else ()
        return [assignment.node for assignment in assignments if isinstance(assignment, Assignment)]

    def _instances(self, name: str) -> set[str]:
        """Return the names bound to an instance of a class."""
        return {
            code(target)
            for target, value in self._bound
            if any(_is_named(call.func, name) or _is_attribute(call.func, name) for call in _inside(value, cst.Call))
        }

    def _place(self, module: cst.BaseExpression) -> cst.CSTNode:
        """Return the statement to compile a module at.

        It is the outermost loop around the call that does not bind the module's name. In a function without a loop,
        it is the only line that binds the name.

        Raises:
            Unclear: There is no such place.
        """
        name = code(module)
        bindings = self._bindings(module)
        targets = [target for target, _ in self._bound if code(target) == name]
        lines = [self._places[node].start.line for node in (*bindings, *targets)]
        around = itertools.takewhile(lambda node: not isinstance(node, cst.FunctionDef), self._parents_of(module))
        loops = [node for node in around if isinstance(node, cst.For | cst.While)]
        for loop in reversed(loops):
            place = self._places[loop]
            if not any(place.start.line <= line <= place.end.line for line in lines):
                return loop
        if loops:
            raise Unclear(f"`{name}` is bound in the loop")
        passed = any(isinstance(node, cst.Param) for node in bindings)
        if len(targets) != 1 or not self._is_made_before(module, targets[0], passed):
            raise Unclear("the function there has no loop")
        return next(node for node in self._parents_of(targets[0]) if isinstance(node, cst.SimpleStatementLine))

    def _is_made_before(self, module: cst.CSTNode, target: cst.CSTNode, passed: bool) -> bool:
        """Return whether a name is bound once for many calls.

        If the function is passed the object, the class must bind the attribute. Otherwise, code around the function
        must bind the name.
        """
        around_call, around_target = list(self._parents_of(module)), list(self._parents_of(target))
        binder = _nearest(around_target, cst.FunctionDef)
        if binder is _nearest(around_call, cst.FunctionDef):
            return False
        if passed:
            kind = _nearest(around_call, cst.ClassDef)
            return kind is not None and kind is _nearest(around_target, cst.ClassDef)
        return binder is None or binder in around_call

    def _all(self, kind: type[Node]) -> list[Node]:
        return [node for node in self._parents if isinstance(node, kind)]

    def _parents_of(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        while not isinstance(node, cst.Module):
            node = self._parents[node]
            yield node

    def _is_meant(self, call: cst.Call, wish: Wish) -> bool:
        package, _, name = wish.callee.rpartition(".")
        if wish.is_method:
            return _is_attribute(call.func, name)
        bound = [value for target, value in self._bound if code(target) == code(call.func)]
        function = bound[0] if len(bound) == 1 else call.func
        if full_names := [full_name.name for full_name in self._full_names(function)]:
            # It may be imported from the module that defines it: `torch.optim.adamw.AdamW`.
            return any(full.startswith(f"{package}.") and full.endswith(f".{name}") for full in full_names)
        return _is_named(function, name)

    def _line(self, call: cst.Call) -> int:
        """Return the line that a frame in this call reports."""
        return self._places[call.func.attr if isinstance(call.func, cst.Attribute) else call].start.line

    def _moves_anything(self, call: cst.Call) -> bool:
        """Return whether the call is in a function whose parameters determine both the moved object and the target."""
        around = list(self._parents_of(call))
        function = next((node for node in around if isinstance(node, cst.FunctionDef | cst.Lambda)), None)
        if function is None:
            return False
        parameters = {param.name.value for param in _inside(function.params, cst.Param)}
        where = {name for arg in call.args for name in _names(arg.value)}
        what = _names(cst.ensure_type(call.func, cst.Attribute).value)
        inside = around[: around.index(function)]
        handed_on = isinstance(function, cst.Lambda) or any(isinstance(node, cst.Return) for node in inside)
        return bool(where & parameters) and (handed_on or bool(what & parameters))


def _nearest(nodes: Iterable[cst.CSTNode], kind: type[cst.CSTNode]) -> cst.CSTNode | None:
    return next((node for node in nodes if isinstance(node, kind)), None)


def _names(node: cst.CSTNode) -> set[str]:
    return {name.value for name in _inside(node, cst.Name)}


# Importing `libcst.matchers`, which has such functions, takes half a second.


def _inside(node: cst.CSTNode, kind: type[Node]) -> Iterator[Node]:
    """Yield the nodes of a kind in a tree, the root included."""
    if isinstance(node, kind):
        yield node
    for child in node.children:
        yield from _inside(child, kind)


def _is_named(node: cst.CSTNode, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name


def _is_attribute(node: cst.CSTNode, name: str) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == name


def code(node: cst.CSTNode) -> str:
    """Return the node's text."""
    return cst.Module([]).code_for_node(node)


def _is_dotted(node: cst.BaseExpression) -> bool:
    """Return whether this is a name, or a name with attributes."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)
