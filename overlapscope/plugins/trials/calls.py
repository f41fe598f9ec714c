"""Edits of a call in a program's text: new options in the style of the others, or a pinned tensor.

Libraries that run the training loop have options of their own for some changes.
"""

from __future__ import annotations

from typing import Final

import libcst as cst
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
