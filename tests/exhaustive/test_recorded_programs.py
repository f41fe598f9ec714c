"""Tests that programs behave alike under Python and `overlapscope run`: exit code, stdout, files, and stderr except our
lines.

Every one is a real process, most with torch loaded before. Programs that differ only in how they end are in
`test_run_recorded`.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import Struct

from overlapscope.reading import load
from tests.support import forked

pytest.importorskip("torch", reason="records with torch")

PATIENCE_S = 300
"""A program that takes longer hangs."""
TRACE = "program.trace.json.gz"
REPORT = re.compile(rf"^{re.escape(TRACE)}: .*?^Add -v for [^\n]*checks\.\n", re.DOTALL | re.MULTILINE)
HEAD = """
import os, signal, sys, threading, time, torch
model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(20)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        model(torch.ones(4, 8)).sum().backward(); optimizer.step()
def when_writing(number):
    # Sends this process a signal as soon as a trace is being written.
    def watch():
        while not any(".trace.json.gz." in name and name.startswith(".") for name in os.listdir()): time.sleep(0)
        os.kill(os.getpid(), number)
    if "overlapscope.recorder.program" in sys.modules: threading.Thread(target=watch, daemon=True).start()
    else: sys.argv.append(str(number))
def plainly():
    # What comes of that signal where nothing is written.
    if len(sys.argv) > 1: os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(0.1)
"""


class RecordedProgram(Struct, frozen=True):
    """A program, the contents of its trace, and its messages."""

    text: str
    steps: int | None
    """Number of steps in the trace; None without a trace."""
    message: str = ""
    options: tuple[str, ...] = ()
    op: str = ""
    """An op in the trace."""


_INTERRUPTED = """
when_writing(signal.SIGINT)
try: train(45); plainly()
except KeyboardInterrupt: print("its handler"); raise SystemExit(9)
finally: print("finally")
"""
PROGRAMS = {
    "five steps": RecordedProgram("train(5)", 5, "only 5 of the 41 steps"),
    "its own handler of ctrl-c, while the trace is written": RecordedProgram(_INTERRUPTED, 7, f"wrote {TRACE}"),
    "ctrl-c without a handler, while the trace is written": RecordedProgram(
        "sys.excepthook = lambda kind, *_: print(kind)\nwhen_writing(signal.SIGINT); train(45); plainly()", 7
    ),
    "sigterm while the trace is written": RecordedProgram("when_writing(signal.SIGTERM); train(45); plainly()", 7),
    "sighup": RecordedProgram("train(45); os.kill(os.getpid(), signal.SIGHUP); time.sleep(9)", 7, f"wrote {TRACE}"),
    "_exit behind the recording": RecordedProgram("train(45); os._exit(7)", 7, f"wrote {TRACE}, analyze with"),
    "_exit on another thread, while the trace is written": RecordedProgram(
        "def leave():\n"
        "    while not any('.trace.json.gz.' in name and name[0] == '.' for name in os.listdir()): time.sleep(0)\n"
        "    os._exit(6)\n"
        "if 'overlapscope.recorder.program' in sys.modules: threading.Thread(target=leave, daemon=True).start()\n"
        "train(45); os._exit(6)",
        7,
        f"wrote {TRACE}",
    ),
    "_exit while the GPU hangs": RecordedProgram(
        "train(5)\n"
        "if 'overlapscope.recorder.program' in sys.modules:\n"
        "    import ctypes, overlapscope.commands.run as run, overlapscope.recorder.devices as devices\n"
        "    run._PATIENCE_S, devices.synchronize = 0.2, ctypes.CDLL(None).pause\n"
        "os._exit(6)",
        None,
        "the GPU did not finish its work within 0.2 s",
    ),
    "execv": RecordedProgram(
        "train(5)\n"
        "try: os.execv('missing', ['missing'])\nexcept FileNotFoundError: train(5)\n"
        "os.execvp('sh', ['sh', '-c', 'echo another; exit 5'])",
        10,
        "os.execv replaces the program by another",
    ),
    "execv before torch is imported": RecordedProgram(
        "import os; os.execv('/bin/sh', ['sh', '-c', 'echo another; exit 5'])", None, "os.execv replaces the program"
    ),
    "a child that is forked and replaced": RecordedProgram(
        "train(5); print(os.spawnv(os.P_WAIT, '/bin/sh', ['sh', '-c', 'exit 3'])); train(5)", 10, "only 10 of the 41"
    ),
    "a handler that raises": RecordedProgram(
        "def late(*_): raise TimeoutError('its own')\n"
        "signal.signal(signal.SIGUSR1, late)\nwhen_writing(signal.SIGUSR1)\n"
        "try: train(45); plainly()\nexcept TimeoutError as error: print(error)",
        7,
    ),
    "help": RecordedProgram(
        "import argparse, torch; argparse.ArgumentParser(prog='p').parse_args(['--help'])", None, "ran no op"
    ),
    "dies early": RecordedProgram("train(0); torch.ones(3) * 3; 1 / 0", None, "died of an exception"),
    "dies later": RecordedProgram("train(2); 1 / 0", 2, f"wrote {TRACE}"),
    "no more than is recorded": RecordedProgram(
        "from atexit import register; register(print, 'exit handler')\n"
        "try: train(10**9 if 'overlapscope.recorder.program' in sys.modules else 1)\nfinally: print('finally')",
        7,
        f"wrote {TRACE}",
        ("--stop-after-recording",),
    ),
    "what ends it is lost on the way, as torch's trace of the GPU loses it": RecordedProgram(
        "try: train(10**9 if 'overlapscope.recorder.program' in sys.modules else 1)\n"
        "except SystemExit: raise SystemError('exec returned NULL without setting an exception') from None",
        7,
        f"wrote {TRACE}",
        ("--stop-after-recording",),
    ),
    "a thread pool's server": RecordedProgram(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(1) as pool: print(list(pool.map(train, [2] * 8)))",
        9,
        "only 16 of the 41 steps",
        op="aten::linear",
    ),
    "forks, and children are to be recorded": RecordedProgram(
        "from multiprocessing import get_context\n"
        "child = get_context('fork').Process(target=train, args=(9,)); child.start(); child.join()",
        None,
        "forked processes (1) after it had imported torch",
        ("--subprocesses",),
    ),
    "forks itself": RecordedProgram(
        "if child := os.fork(): os.waitpid(child, 0); torch.ones(3)\nelse: train(50)",
        0,
        "forked processes (1) after it had imported torch",
    ),
}


FROM_SCRATCH = "its own handler of ctrl-c, while the trace is written"
"""This one is recorded as a person starts it."""


def execute(
    arguments: list[str], directory: Path, text: str, *, from_scratch: bool = False
) -> subprocess.CompletedProcess[str]:
    directory.mkdir()
    (directory / "program.py").write_text(text)
    if not from_scratch:
        return forked.run(arguments, directory)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def steps(path: Path) -> int:
    notes = load(path).annotations
    return sum(notes.name(row).startswith("ProfilerStep#") for row in range(len(notes)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_it_does_alone_and_leaves_its_trace(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    text = program.text if program.text.startswith("import") else HEAD + program.text
    alone = execute(["program.py"], tmp_path / "alone", text)
    run = ["-m", "overlapscope", "run", *program.options, "program.py"]
    recorded = execute(run, tmp_path / "recorded", text, from_scratch=name == FROM_SCRATCH)
    lines = recorded.stderr.splitlines(keepends=True)
    ours = "".join(line for line in lines if line.startswith("overlapscope: "))
    theirs = "".join(line for line in lines if not line.startswith(("overlapscope: ", "USDT:")))
    theirs, reports = REPORT.subn("", theirs)
    # After a program that was killed, the report comes later; after an exception, which comes last, none is printed.
    left_early = any(call in program.text for call in ("_exit", "execv"))
    died = "Traceback (most recent call last)" in alone.stderr
    assert reports == (program.steps is not None and not died) or alone.returncode < 0 or left_early
    theirs = theirs.replace(str(tmp_path / "recorded"), str(tmp_path / "alone"))
    assert (recorded.returncode, recorded.stdout, theirs) == (alone.returncode, alone.stdout, alone.stderr)
    assert program.message in ours
    trace = tmp_path / "recorded" / TRACE
    files = {path.name for path in (tmp_path / "recorded").iterdir()} - {"program.py"}
    assert files == (set() if program.steps is None else {TRACE})
    if program.steps is not None:
        assert steps(trace) == program.steps
        assert not program.op or load(trace).cpu_ops.named(program.op.__eq__).any()
        assert ours.count(f"wrote {TRACE}, analyze with `overlapscope analyze {TRACE}`") == 1


def test_sigterm_inside_a_recording_in_code_ends_the_program_at_once(tmp_path: Path) -> None:
    text = (
        HEAD + "import overlapscope\n"
        "with overlapscope.record('x.json') as rec:\n"
        "    train(1); rec.step()\n"
        "    print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)\n"
    )
    done = execute(["program.py"], tmp_path / "program", text)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "True\n", "")
    assert not (tmp_path / "program" / "x.json").exists()


def test_an_old_trace_is_never_taken_for_that_of_a_run_that_died(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / TRACE).write_text("old")
    (tmp_path / "program" / "program.py").write_text("1 / 0")
    command = [sys.executable, "-m", "overlapscope", "run", "-f"]
    for script, kept_trace in (("nowhere.py", TRACE), ("program.py", f"{TRACE}.old")):
        options = ["-o", TRACE, script]
        done = subprocess.run(
            [*command, *options], cwd=tmp_path / "program", capture_output=True, check=False, timeout=PATIENCE_S
        )
        assert done.returncode != 0
        assert {path.name for path in (tmp_path / "program").iterdir()} == {"program.py", kept_trace}
        assert (tmp_path / "program" / kept_trace).read_text() == "old"


@pytest.mark.parametrize(("arguments", "stdin"), [(["-c", "TEXT", "-x"], False), (["-", "-x"], True)], ids=["-c", "-"])
def test_a_text_and_standard_input_run_as_under_python(arguments: list[str], stdin: bool, tmp_path: Path) -> None:
    text = "import sys\nprint(sys.argv, sys.path[0], sorted(globals()), __loader__, __name__)\n1 / 0\n"
    python, ours = (
        subprocess.run(
            [sys.executable, *flags, *(text if argument == "TEXT" else argument for argument in arguments)],
            cwd=tmp_path,
            input=text if stdin else "",
            capture_output=True,
            text=True,
            check=False,
        )
        for flags in ([], ["-m", "overlapscope", "run"])
    )
    assert (ours.returncode, ours.stdout) == (python.returncode, python.stdout)
    assert ours.stderr == "overlapscope: nothing was recorded: the program never imported torch.\n" + python.stderr
