"""Small programs that train in unusual places, end in unusual ways or look closely at their process.

Each behaves under `overlapscope run` as it does alone: exit code, output, tracebacks and results.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tests.programs.ways_to_run import endings, inside, together

_TRAIN = """
import torch

def train(steps=45, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.rand(8, 8, generator=generator, requires_grad=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    with torch.no_grad():
        for parameter in model.parameters(): parameter.fill_(0.1)
    optimizer = torch.optim.SGD([*model.parameters(), weight], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8) @ weight).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()
"""


@dataclass(frozen=True, slots=True)
class ProgramToRun:
    """A program, and the ways in which Python and `overlapscope run` are asked to run it."""

    text: str
    command: Sequence[str] = ("program.py",)
    """Arguments of `overlapscope run`."""
    python: Sequence[str] | None = None
    """Arguments of Python, where they are others."""
    file: str = "program.py"
    """Name of the file with the text."""
    stdin: str = "given"
    unloads: bool = True
    """False if nothing is said when Python unloads it."""


def _text(body: str) -> str:
    return f"import os, sys, threading{_TRAIN}\n{textwrap.dedent(body).strip()}\n"


_ENDS = _text("""
    class Point: pass
    import pickle
    print(sys.argv, __name__, __package__, type(pickle.loads(pickle.dumps(Point()))) is Point, repr(sys.stdin.read()))
    print(train(60)); 1 / 0
""")


# `tests/torch/test_run.py` starts folders, packages and zip files.
STARTS = {
    "a module": ProgramToRun(_ENDS, ("-m", "program", "-x")),
    "a text": ProgramToRun(_ENDS, ("-c", _ENDS, "x")),
    "standard input": ProgramToRun(_ENDS, ("-",), stdin=_ENDS),
    "a debugger": ProgramToRun(
        _text("import pdb; loss = train(60); pdb.Pdb(readrc=False, nosigint=True).set_trace(); print('goes on')"),
        stdin="p loss > 0\nc\n",
    ),
}

_ON_THE_WAY = together.THREADS | together.ASYNCIO | together.PROCESSES | inside.LOOKS | inside.TORCH
_AT_THE_END = endings.SIGNALS | endings.ENDINGS | endings.TEARDOWN

PROGRAMS = {
    **{name: ProgramToRun(_text(body), unloads=False) for name, body in _ON_THE_WAY.items()},
    **{name: ProgramToRun(_text(body)) for name, body in _AT_THE_END.items()},
    **STARTS,
}
"""Programs by their names."""

DIFFER_MOST = (
    "three threads with models of their own",
    "backward in a thread, the step in another",
    "a signal in an event loop",
    "a program that waits for all its children",
    "an exception in an optimizer's step",
    "an alarm that raises",
    "a step that outlives the name of its optimizer",
    "all descriptors closed",
    "no optimizer, and no compiler",
    "modes that see each op",
)
"""`tests/torch` runs these, and `tests/exhaustive` the others."""
