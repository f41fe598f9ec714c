"""`overlapscope completion`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from overlapscope.commands import DONE, commands, subcommand
from overlapscope.commands._options import add_output
from overlapscope.commands._output import check_output, write

_FILES = ("TRACE", "BEFORE", "AFTER", "SOURCE", "SCRIPT", "FILE")
"""Metavars of arguments that are files."""


class CompletionCommand:
    """Print a shell completion script for commands, options, rules and file
    names. Write it to where the shell looks for it, and start a new shell. The
    directory must exist.

        overlapscope completion bash -o ~/.local/share/bash-completion/completions/overlapscope
        overlapscope completion zsh -o ~/.zfunc/_overlapscope
        overlapscope completion fish -o ~/.config/fish/completions/overlapscope.fish

    For zsh, ~/.zshrc needs `fpath+=~/.zfunc` before `compinit`.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to complete in")
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force)
        import shtab

        write(f"{shtab.complete(_parser(), args.shell)}\n".encode(), args.output, force=args.force)
        return DONE


def _parser() -> argparse.ArgumentParser:
    """Return a parser of all commands whose arguments have choices or completions."""
    import shtab

    from overlapscope.catalog.causes import CAUSES
    from overlapscope.rules import RULES

    parser = argparse.ArgumentParser(prog="overlapscope")
    parser.add_argument("--version", action="store_true", help="print the version")
    parsers = parser.add_subparsers()
    for name, summary in commands().items():
        subparser = parsers.add_parser(name, help=summary)
        subcommand(name).prepare_parser(subparser)
        for action in _actions(subparser):
            if action.metavar == "WORD":
                action.choices = [*RULES, *CAUSES]
            elif action.metavar == "RULE":
                action.choices = list(RULES)
            elif action.metavar == "DIR":
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.type is Path or (action.metavar or action.dest.upper()) in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
        yield action
