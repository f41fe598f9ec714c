"""`overlapscope contract`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from overlapscope.base.output import tell
from overlapscope.commands import DONE
from overlapscope.commands._options import add_actions, add_format, add_output, add_reading, add_steps_by
from overlapscope.commands._output import check_output, present, write

if TYPE_CHECKING:
    from overlapscope.contracts.model import Contract

_FILE = "overlap.contract.toml"


class ContractCommand:
    """Write down which copies may run beside compute, so that `overlapscope
    check` fails when that is lost.

    A contract is a small TOML file to keep beside the code. It states what a
    typical step copies, beside how many kernels each copy may run, and where
    the host waits. All of this follows from streams, events, memory and the
    order of calls, not from times, so a noisy or slower machine changes
    nothing.

    `overlapscope check` finds overlap.contract.toml in this directory or one
    above it, up to the root of the repository.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        action = add_actions(parser)
        for name, phrase in (
            ("write", "write the contract that a recording keeps"),
            ("update", "renew a contract from a recording, and list what changed"),
        ):
            writes = action(name, phrase)
            writes.add_argument("trace", metavar="TRACE", help="recording of `overlapscope run`")
            writes.add_argument(
                "-o", "--output", metavar="FILE", type=Path, default=Path(_FILE), help=f"contract (default: {_FILE})"
            )
            if name == "write":
                writes.add_argument("-f", "--force", action="store_true", help="overwrite FILE if it exists")
            add_steps_by(writes)
            add_reading(writes)
        diff = action("diff", "compare two contracts: what is lost, and what is gained")
        for side in ("before", "after"):
            diff.add_argument(side, metavar=side.upper(), help="trace or contract")
        add_format(diff)
        add_output(diff)
        add_steps_by(diff)
        add_reading(diff)

    def run(self, args: argparse.Namespace) -> int:
        if args.action != "diff":
            return (_write if args.action == "write" else _update)(args)
        from overlapscope.contracts.compare import changes, compare

        promises = compare(_read(args.before, args), _read(args.after, args))
        present(promises, lambda: changes(promises), args)
        return DONE


def _write(args: argparse.Namespace) -> int:
    check_output(args.output, force=args.force, inputs=(args.trace,))
    from overlapscope.contracts.model import to_toml

    contract = _promised(args.trace, args)
    write(to_toml(contract).encode(), args.output, force=args.force)
    return DONE


def _update(args: argparse.Namespace) -> int:
    check_output(args.output, force=True, inputs=(args.trace,))
    from msgspec.structs import replace

    from overlapscope.contracts import model
    from overlapscope.contracts.compare import changes, compare
    from overlapscope.render import terminal

    before = model.read(args.output)
    after = replace(_promised(args.trace, args), margin_pct=before.margin_pct, replaces=before.replaces)
    write(model.to_toml(after).encode(), args.output, force=True)
    write(terminal.to_stream(changes(compare(before, after)), sys.stdout), None)
    return DONE


def _read(path: str, args: argparse.Namespace) -> Contract:
    """Return the contract in a file, or that of a recording."""
    from overlapscope.contracts.model import read

    return read(Path(path)) if path.endswith(".toml") else _promised(path, args)


def _promised(path: str, args: argparse.Namespace) -> Contract:
    """Return the contract that a recording keeps."""
    from overlapscope.contracts.judge import promise
    from overlapscope.inputs import read_trace

    contract = promise(read_trace(path, limit_bytes=args.max_size, cache=args.cache, steps_by=args.steps_by))
    for reason in (contract.not_promised,) if contract.not_promised else contract.unknown:
        tell(f"overlapscope: warning: {reason}")
    return contract
