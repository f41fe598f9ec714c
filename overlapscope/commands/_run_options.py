"""Arguments of commands that run a program, and options on what to record, when, and where to."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields, replace
from pathlib import Path

from overlapscope.commands._options import parse_size
from overlapscope.errors import UsageError
from overlapscope.plugin import observers, plugins
from overlapscope.recorder.options import DEFAULT_MAX_SIZE_BYTES, Options

# -- The program to run, named as for Python -------------------------------------------------------

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?(\.exe)?")
_LAUNCHERS = {
    "torchrun": "torchrun",
    "torch.distributed.run": "python -m torch.distributed.run",
    "torch.distributed.launch": "python -m torch.distributed.launch",
    "accelerate": "accelerate launch",
    "accelerate.commands.launch": "accelerate launch",
}
"""Launchers of other programs, with the names that users know."""


def add_program(parser: argparse.ArgumentParser, command: str) -> None:
    """Add `args.script` and `args.arguments`, with `args.module` and `args.code` for the kind of script."""
    parser.usage = (
        f"overlapscope {command} [options] SCRIPT [ARGUMENTS...]\n"
        f"       overlapscope {command} [options] -m MODULE [ARGUMENTS...]\n"
        f"       overlapscope {command} [options] -c CODE [ARGUMENTS...]"
    )
    parser.add_argument(
        "script", metavar="SCRIPT", help="script, directory or zip file with a __main__.py, or - for stdin"
    )
    arguments = parser.add_argument(
        "arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="arguments and options of the script"
    )
    arguments.required = False
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("-m", dest="module", action="store_true", help="run a module, as `python -m` does")
    kinds.add_argument(
        "-c", dest="code", action="store_true", help="run code from the command line, as `python -c` does"
    )


def launcher_of(args: argparse.Namespace) -> str | None:
    """Return the name of the launcher if the program is one."""
    if args.code:
        return None
    return _LAUNCHERS.get(args.script if args.module else Path(args.script).name)


def check_not_python(args: argparse.Namespace) -> None:
    """Raise UsageError if the program is Python itself."""
    if not (args.module or args.code) and _PYTHON.fullmatch(Path(args.script).name):
        raise UsageError(f"overlapscope starts Python itself; leave out {args.script}.")


_COMMON = ("--wait", "--active", "--steps-by", "--stacks")
"""Options that `--help` shows; the others need `--help-all`."""
DEFAULTS = Options(wait=3, warmup=2, active=5)
"""Options of a recording by steps, if the user names none."""
_WINDOWS: tuple[tuple[str, str, type, str], ...] = (
    ("--wait", "N", int, f"steps to skip at the start (default: {DEFAULTS.wait})"),
    ("--warmup", "N", int, f"steps to record next, but not judge (default: {DEFAULTS.warmup})"),
    ("--active", "N", int, f"steps to record and judge (default: {DEFAULTS.active})"),
    (
        "--plain-steps",
        "N",
        int,
        "steps to time without the profiler, right before and right after the recording (default: "
        f"{DEFAULTS.plain_steps}; a program then needs {DEFAULTS.needed_steps} steps in all, or "
        f"{replace(DEFAULTS, plain_steps=0).needed_steps} with 0)",
    ),
    (
        "--steps-by",
        "NAME",
        str,
        "what a step is: marks (of the program only), optimizer, backward, forward, loader or graph; or the name of a "
        "call or a range, such as Adam.step, ResNet.forward or 'iteration*' (default: the first of these that the "
        "program has)",
    ),
    ("--delay", "S", float, "record by time instead of by steps: start after S seconds"),
    ("--duration", "S", float, "stop S seconds after the start (default: at the end)"),
    (
        "--slow-step",
        "X",
        float,
        "record all the time, and keep the first step that takes more than X times the median",
    ),
)
"""Options on when to record, each with its placeholder, its type and its help."""
_CONTENTS = {
    "--whole": "record the whole program, not only some steps or seconds",
    "--stacks": "record Python stacks (slows the host down)",
    "--shapes": "record input shapes",
    "--memory": "record memory allocations",
    "--light": "do not record PyTorch ops, so that the host slows down less",
}
"""Flags on what to record, each with its help."""


def add_recording(parser: argparse.ArgumentParser, rare: argparse._ArgumentGroup) -> None:
    """Add the options on what to record, and when; those that few people need to `rare`."""
    for flag, metavar, kind, help_text in _WINDOWS:
        group = parser if flag in _COMMON else rare
        group.add_argument(flag, dest=_dest(flag, metavar), metavar=metavar, type=kind, help=help_text)
    for flag, help_text in _CONTENTS.items():
        (parser if flag in _COMMON else rare).add_argument(flag, action="store_true", help=help_text)
    for name, option in observers().items():
        rare.add_argument(option.flag, dest=f"observer {name}", action="store_true", help=option.help)
    rare.add_argument(
        "--max-size",
        dest="max_size_bytes",
        metavar="SIZE",
        type=parse_size,
        default=DEFAULT_MAX_SIZE_BYTES,
        help="end the recording when its events take this much memory; writing the trace briefly takes several "
        "times as much (default: 1GiB; Linux only)",
    )


def _dest(flag: str, metavar: str) -> str:
    """Return the name of the field that an option of `_WINDOWS` sets. One in seconds ends in its unit."""
    return flag.strip("-").replace("-", "_") + ("_s" if metavar == "S" else "")


def add_output(parser: argparse.ArgumentParser, rare: argparse._ArgumentGroup) -> None:
    """Add the options on the trace file, and on actions besides recording; those that few people need to `rare`."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="trace file (default: NAME.trace.json.gz, after the script); {rank}, {pid}, {time} and {host} are "
        "filled in",
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite the trace if it exists")
    rare.add_argument(
        "--stop-after-recording",
        action="store_true",
        help="end the script, as sys.exit() does, when all steps are recorded and timed",
    )
    rare.add_argument(
        "--subprocesses",
        action="store_true",
        help="also record the Python processes that the script starts, if they mark steps or use a GPU, to NAME.traces",
    )
    for option in (plugin.run for plugin in plugins() if plugin.run):
        parser.add_argument(option.flag, action="store_const", dest="instead", const=option.place, help=option.help)
    parser.add_argument("--open", action="store_true", help="open the trace in a browser afterwards, until Ctrl-C")


def recording_options(args: argparse.Namespace) -> Options:
    """Return the options of the recording. Raises UsageError for a contradiction between two of them."""
    args.observers = tuple(name for name in observers() if getattr(args, f"observer {name}"))
    given = {field.name: getattr(args, field.name) for field in fields(Options)}
    by_steps = given["delay_s"] is None and given["duration_s"] is None
    if args.whole:
        for flag, metavar, *_ in _WINDOWS:
            if getattr(args, _dest(flag, metavar)) is not None:
                raise UsageError(f"--whole and {flag} both choose what is recorded; use only one of them.")
        return Options(**given | {"wait": 0, "warmup": 0, "plain_steps": 0})
    defaults = {
        "wait": DEFAULTS.wait if by_steps else 0,
        "warmup": DEFAULTS.warmup,
        "active": DEFAULTS.active if by_steps and args.slow_step is None else None,
        "plain_steps": DEFAULTS.plain_steps,
    }
    return Options(**given | {name: default for name, default in defaults.items() if given[name] is None})
