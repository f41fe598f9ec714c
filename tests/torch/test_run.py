"""`overlapscope run`: a program behaves as if Python ran it, and leaves a trace. Every one here is a real process."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from overlapscope.reading import expand, load
from overlapscope.recorder import devices
from tests.support import forked

FORKED = ("-m", "overlapscope", "run")
RUN = (sys.executable, *FORKED)
PATIENCE_S = 300
"""A program that takes longer hangs."""
Done = subprocess.CompletedProcess[str]


def execute(command: Sequence[str], cwd: Path, *, stdin: str = "", **environment: str) -> Done:
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def without_ours(stderr: str) -> str:
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith("overlapscope: "))


def alike(arguments: Sequence[str], cwd: Path, *, flags: Sequence[str] = (), stdin: str = "") -> Done:
    """How the program ended under overlapscope, which must be as under Python alone."""
    python = [sys.executable, *flags]
    alone = execute([*python, *arguments], cwd, stdin=stdin)
    run = execute([*python, "-m", "overlapscope", "run", *arguments], cwd, stdin=stdin)
    assert (run.returncode, run.stdout, without_ours(run.stderr)) == (alone.returncode, alone.stdout, alone.stderr)
    return run


# -- as if Python ran it: programs without torch, so that this part is quick --------------------------------------

WORLD = """
import pickle, sys
if __name__ == "__main__":
    names = dict(sorted(globals().items()))
    print(names["__builtins__"], len(names))
    print([names[name] for name in names if name[:2] == "__" and name[2] not in "bls"])
    print(type(__loader__).__name__, __spec__ and (__spec__.name, __spec__.origin, __spec__.parent))
    print(sys.argv, sys.path[:2], sys.modules["__main__"].__dict__ is globals(), "torch" in sys.modules)
    print(sys._getframe().f_code.co_filename, repr(sys.stdin.read()))

    class Point: pass

    print(type(pickle.loads(pickle.dumps(Point()))) is Point)
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The same program as a script, a directory, a zip file, a package and a module of a package."""
    write(tmp_path / "plain.py", WORLD)
    write(tmp_path / "directory" / "__main__.py", WORLD)
    write(tmp_path / "package" / "__init__.py", "value = 1")
    write(tmp_path / "package" / "__main__.py", "from . import value" + WORLD)
    write(tmp_path / "package" / "module.py", "from .  import value" + WORLD)
    with zipfile.ZipFile(tmp_path / "packed.pyz", "w") as archive:
        archive.writestr("__main__.py", WORLD)
    (tmp_path / "directory" / "link.py").symlink_to(tmp_path / "plain.py")
    return tmp_path


@pytest.mark.parametrize(
    "program",
    [
        ["plain.py"],
        ["./plain.py"],
        ["directory/../plain.py"],
        ["directory/link.py"],
        ["directory"],
        ["packed.pyz"],
        ["-m", "plain"],
        ["-m", "package"],
        ["-m", "package.module"],
    ],
    ids=" ".join,
)
def test_the_program_finds_the_world_as_python_makes_it(program: list[str], programs: Path) -> None:
    arguments = [*program, "--wait", "9", "-o", "--", "-h", "x y"]
    assert alike(arguments, programs, stdin="passed on\n").returncode == 0


@pytest.mark.parametrize("program", ["plain.py", "directory"])
def test_a_safe_path_stays_safe(program: str, programs: Path) -> None:
    alike([program], programs, flags=["-P"])


@pytest.mark.parametrize(
    "text",
    [
        "import sys; sys.exit()",
        "import sys; print('out'); sys.exit(3)",
        "import sys; sys.exit(True)",
        "import sys; sys.exit('a text')",
        "import sys; sys.exit(['a', 'list'])",
        "raise SystemExit",
        "def f(): 1 / 0\ntry: f()\nexcept ZeroDivisionError as e: raise ValueError('two\\nlines') from e",
        "raise ExceptionGroup('several', [KeyError(1), OSError(2, 'two')])",
        "import nowhere_to_be_found",
        "x = = 1",
        "x = '\\0'",
        "from overlapscope.errors import UsageError\nraise UsageError('its own')",
        "import sys\nsys.excepthook = lambda *error: print('hook', error[:2], error[2].tb_frame.f_code.co_name)\n1 / 0",
        "import sys\ndef hook(*error): raise KeyError\nsys.excepthook = hook\n1 / 0",
        "import sys\nsys.excepthook = lambda *error: sys.exit(5)\n1 / 0",
        "import sys; sys.stdout.close()",
        "import sys; sys.stdout = None",
        "raise KeyboardInterrupt",
        "import signal; print('out', flush=True); signal.raise_signal(signal.SIGINT)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os; print('out', flush=True); os._exit(7)",
        "import os\nif os.fork(): os.wait()\nprint('both', flush=True)",
    ],
)
def test_it_ends_as_under_python(text: str, tmp_path: Path) -> None:
    write(tmp_path / "program.py", text)
    alike(["program.py"], tmp_path)


@pytest.mark.parametrize(
    ("initialisation", "program"), [("1 / 0", "package.module"), ("import nowhere", "package"), ("", "package.broken")]
)
def test_a_traceback_of_a_module_has_no_frames_but_its_own(initialisation: str, program: str, programs: Path) -> None:
    write(programs / "package" / "__init__.py", initialisation)
    write(programs / "package" / "broken.py", "1 / 0")
    run = execute([*RUN, "-m", program], programs)
    assert run.returncode == 1
    frames = [line for line in run.stderr.splitlines() if line.startswith("  File ")]
    assert len(frames) == 1 and str(programs / "package") in frames[0]


def test_threads_and_exit_handlers_outlive_the_last_line(tmp_path: Path) -> None:
    write(
        tmp_path / "program.py",
        "import atexit, pickle, threading, time\n"
        "class Point: pass\n"
        "def late(where):\n"
        "    time.sleep(0.3)\n"
        "    print(where, type(pickle.loads(pickle.dumps(Point()))) is Point, __name__, flush=True)\n"
        "threading.Thread(target=late, args=['thread']).start()\n"
        "atexit.register(late, 'exit')\n"
        "left_open = open('log', 'w')\n"
        "left_open.write('flushed')\n"
        "raise KeyboardInterrupt\n",
    )
    run = alike(["program.py"], tmp_path)
    assert run.stdout == "thread True __main__\nexit True __main__\n"
    assert (tmp_path / "log").read_text() == "flushed"


@pytest.mark.parametrize("program", [["work.py"], ["-m", "work"]], ids=" ".join)
def test_spawned_processes_import_the_program(program: list[str], tmp_path: Path) -> None:
    write(
        tmp_path / "work.py",
        "import multiprocessing\n"
        "def double(x): return __name__, 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [1, 2]))\n",
    )
    assert alike(program, tmp_path).stdout == "[('__mp_main__', 2), ('__mp_main__', 4)]\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere.py"], "nowhere.py: cannot be read (No such file or directory)"),
        (["empty"], "empty: has no __main__.py"),
        (["-m", "nowhere"], "there is no module 'nowhere'"),
        (["-m", "package.nowhere"], "there is no module 'package.nowhere'"),
        (["-m", "empty"], "there is no module 'empty.__main__'"),
        (["-m", "sys"], "not written in Python"),
        (["torchrun", "plain.py"], "torchrun [options] -m overlapscope run"),
        (["-m", "torch.distributed.run"], "python -m torch.distributed.run [options] -m overlapscope run"),
        (["python", "plain.py"], "overlapscope starts Python itself; leave out python."),
        (["--wait", "-1", "plain.py"], "wait is -1"),
        (["--active", "0", "plain.py"], "active is 0"),
        (["--max-size", "much", "plain.py"], "'much' is not a size"),
        (["--output", "x.txt", "plain.py"], "x.trace.json.gz"),
        (["--output", "no/where.json", "plain.py"], "the directory no does not exist"),
        (["--output", "there.json", "plain.py"], "there.json: already exists; use --force"),
        (["there.py"], "there.trace.json.gz: already exists; use --force"),
        (["--forty-two", "plain.py"], "--forty-two"),
        ([], "required: SCRIPT\n"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_run_is_told_in_a_sentence_and_exits_2(
    arguments: list[str], expected: str, programs: Path
) -> None:
    (programs / "empty").mkdir()
    write(programs / "there.json", "mine")
    write(programs / "there.trace.json.gz", "mine")
    write(programs / "there.py", "print('ran')")
    run = execute([*RUN, *arguments], programs)
    assert (run.returncode, run.stdout) == (2, "")
    assert expected in run.stderr and "Traceback" not in run.stderr
    assert (programs / "there.json").read_text() == (programs / "there.trace.json.gz").read_text() == "mine"


def test_a_program_without_torch_runs_and_is_told_why_there_is_no_trace(tmp_path: Path) -> None:
    write(tmp_path / "program.py", "import os\nif os.fork(): os.wait()\nprint('ran', flush=True)")
    run = execute([*RUN, "program.py"], tmp_path)
    assert (run.returncode, run.stdout) == (0, "ran\nran\n")
    assert run.stderr == "overlapscope: nothing was recorded: the program never imported torch.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


# -- what is recorded -------------------------------------------------------------------------------------------------

torch = pytest.importorskip("torch", reason="records with torch")

TRAIN = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""
NO_GPU = f"overlapscope: no GPU was used, so the report is on the host alone: {devices.why_unused()}."


def wrote(path: str) -> str:
    return f"overlapscope: wrote {path}, analyze with `overlapscope analyze {path}`"


OWN = "overlapscope: The program's own torch.profiler was used, with its schedule."


def content(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return found


def names(path: Path) -> set[str]:
    events = content(path)["traceEvents"]
    return {event["name"] for event in events if event.get("cat") in ("cpu_op", "user_annotation")}


def steps(path: Path) -> list[int]:
    return steps_in(names(path))


def steps_in(names: Iterable[str]) -> list[int]:
    return sorted(int(name.removeprefix("ProfilerStep#")) for name in names if name.startswith("ProfilerStep#"))


def timed(path: Path) -> tuple[int, int]:
    """How many plain steps were timed before the recording and behind it."""
    plain = load(path).plain_steps
    return len(plain.before.host_ns), len(plain.after.host_ns)


def said(run: Done) -> list[str]:
    """What overlapscope and Python said besides the report; Kineto of torch 2.13 talks, too."""
    lines = [line for line in run.stderr.splitlines() if not line.startswith("USDT:")]
    told = next((place for place, line in enumerate(lines) if line.endswith(f"{devices.why_unused()}.")), len(lines))
    return lines[: told + 1] + [line for line in lines[told + 1 :] if line.startswith("overlapscope")]


def test_a_program_without_a_gpu_gets_its_report(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAIN + "for index in range(60): train()\n")
    run = execute([*RUN, "train.py"], tmp_path)
    report = " ".join(run.stderr.partition(NO_GPU)[2].split())
    assert "train.trace.json.gz: A step takes" in report and "on the host on average" in report
    assert "steps take" in report


def test_a_training_script_needs_no_change(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        "import os, sys, threading\n"
        "print(sys.argv, 'torch' in sys.modules, 'numpy' in sys.modules)\n"
        "os.environ['OMP_NUM_THREADS'] = '1'\n" + TRAIN + "print(torch.get_num_threads(), torch.nn.__name__)\n"
        "critic = torch.optim.Adam(torch.nn.Linear(8, 8).parameters())\n"
        "other = threading.Thread(target=critic.step)\n"
        "other.start(); other.join()\n"
        "for index in range(40):\n"
        "    with torch.profiler.record_function('around the step'):\n"
        "        train(); critic.step(); critic.step()\n"
        "    if index == 23: print(os.path.exists('train.trace.json.gz'))\n"
        "    if index == 24: print(os.path.exists('train.trace.json.gz'))\n",
    )
    run = execute([*RUN, "--wait", "3", "--active", "3", "--stacks", "--shapes", "train.py", "--wait", "9"], tmp_path)
    assert run.returncode == 0
    assert run.stdout == "['train.py', '--wait', '9'] False False\n1 torch.nn\nFalse\nTrue\n"
    first, times, last = said(run)
    assert times.startswith("overlapscope: a step takes ") and "recording" in times
    assert (first, last) == (wrote("train.trace.json.gz"), NO_GPU)
    trace = tmp_path / "train.trace.json.gz"
    # The first 8 are rehearsed, 2 settle, 10 are timed.
    assert steps(trace) == [20, 21, 22, 23, 24]
    assert content(trace)["overlapscope"]["warm_up_steps"] == 2
    assert timed(trace) == (10, 10)
    events = content(trace)["traceEvents"]
    assert any(event.get("cat") == "python_function" for event in events)
    assert any("Input Dims" in event.get("args", {}) for event in events)


def test_a_program_that_marks_its_steps_is_taken_at_its_word(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        TRAIN + "import overlapscope\n"
        "for index in range(8):\n"
        "    train()\n"
        "    if index >= 2: overlapscope.step()\n"
        "    optimizer.step()\n",
    )
    schedule = ["--wait", "0", "--warmup", "0", "--active", "99", "--plain-steps", "0"]
    run = forked.run([*FORKED, *schedule, "-o", "x.json", "train.py"], tmp_path)
    assert said(run) == [wrote("x.json"), NO_GPU]
    # The optimizer steps five times until the program marks the end of that step, and then five more.
    assert steps(tmp_path / "x.json") == list(range(5 + 5))


OWN_PROFILERS = {
    "schedule": (
        "with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=2),\n"
        "             on_trace_ready=tensorboard_trace_handler('handled')) as p:\n"
        "    for _ in range(9): train(); p.step()\n"
        "print(p.key_averages()[0].key, len(list(pathlib.Path('handled').iterdir())))\n",
        ["ProfilerStep* 2"],
        [wrote("own.trace.json.gz"), OWN, NO_GPU],
        {"ProfilerStep#2", "ProfilerStep#3", "aten::addmm"},
    ),
    "between rehearsal and recording": (
        "for _ in range(13): train()\nwith profile() as p: torch.ones(3) * 3\nfor _ in range(40): train()\n",
        [],
        [wrote("own.trace.json.gz"), OWN, NO_GPU],
        {"aten::mul"},
    ),
    "export": (
        "with profile() as p: torch.ones(3) * 3\n"
        "p.export_chrome_trace('first.json.gz')\n"
        "try: p.export_chrome_trace('again.json')\n"
        "except RuntimeError as error: print(error)\n"
        "with profile() as q: torch.ones(3) / 3\n"
        "q.export_chrome_trace('second.json')\n"
        "print([event.key for event in p.key_averages() if event.key == 'aten::mul'])\n",
        ["Trace is already saved.", "['aten::mul']"],
        [wrote("own.trace.json.gz"), OWN, NO_GPU],
        {"aten::mul"},
    ),
    "legacy": (
        "with torch.autograd.profiler.profile() as p: torch.ones(3) * 3\n"
        "p.export_chrome_trace('first.json')\n"
        "with torch.autograd.profiler.profile(enabled=False): torch.ones(3)\n"
        "print(len(p.function_events) > 1)\n",
        ["True"],
        [wrote("own.trace.json.gz"), OWN, NO_GPU],
        {"aten::mul"},
    ),
    "thread": (
        "def work():\n"
        "    with profile() as p: torch.ones(3) * 3\n"
        "    p.export_chrome_trace('first.json')\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n",
        [],
        [wrote("own.trace.json.gz"), OWN, NO_GPU],
        {"aten::mul"},
    ),
    "left running": (
        "p = profile(); p.start(); torch.ones(3) * 3\n"
        "def late(): p.stop(); p.export_chrome_trace('first.json'); print('late')\n"
        "atexit.register(late)\n",
        ["late"],
        [wrote("own.trace.json.gz"), OWN, NO_GPU],
        {"aten::mul"},
    ),
    "never": (
        "with profile(schedule=schedule(wait=99, warmup=1, active=2)) as p:\n"
        "    for _ in range(9): train(); p.step()\n",
        [],
        [
            "overlapscope: The program's own torch.profiler recorded nothing; its schedule decides what is recorded.",
            "overlapscope: nothing was recorded.",
        ],
        None,
    ),
    "another kind": (
        "with torch.autograd.profiler.emit_itt(): torch.ones(3)\n",
        [],
        [
            "overlapscope: The program marks its ops for another profiler with emit_itt, and only one can run.",
            "overlapscope: nothing was recorded.",
        ],
        None,
    ),
    "overlapscope": (
        "import overlapscope\n"
        "with overlapscope.record('first.json', plain_steps=0) as rec:\n    for _ in range(3): train(); rec.step()\n"
        "with overlapscope.record('second.json') as rec: torch.ones(3) / 3\n"
        "os.chdir('/')\n",
        [],
        [
            *map(wrote, ("first.json", "second.json", "own.trace.json.gz")),
            "overlapscope: The program made a recording of its own with overlapscope.record; this is a copy of it.",
            NO_GPU,
        ],
        {"ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2", "aten::addmm"},
    ),
}
"""Programs, what they print, what we say, and what must be in our trace."""


@pytest.mark.parametrize("kind", OWN_PROFILERS)
def test_the_program_keeps_its_own_profiler_and_we_get_its_first_trace(kind: str, tmp_path: Path) -> None:
    text, printed, ours, recorded = OWN_PROFILERS[kind]
    head = "import atexit, os, pathlib, threading\nfrom torch.profiler import *\n"
    write(tmp_path / "own.py", TRAIN + head + "for _ in range(2): train()\n" + text)
    run = forked.run([*FORKED, "own.py"], tmp_path)
    assert (run.returncode, run.stdout.splitlines()) == (0, printed)
    assert [line for line in said(run) if line.startswith("overlapscope")] == ours
    trace = tmp_path / "own.trace.json.gz"
    assert trace.exists() == (recorded is not None)
    if recorded is not None:
        assert recorded <= names(trace)
        assert "aten::div" not in names(trace)
        assert steps(trace) == steps_in(recorded)
    for name in ("first.json", "first.json.gz"):
        if (tmp_path / name).exists():
            assert names(tmp_path / name) == names(trace)
    if (tmp_path / "second.json").exists():
        assert "aten::div" in names(tmp_path / "second.json")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_program_that_dies_leaves_its_trace_and_its_traceback(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAIN + "train(); train()\ndef f(): 1 / 0\nf()\n")
    run = forked.run([*FORKED, "--memory", "train.py"], tmp_path)
    assert run.returncode == 1
    python = forked.run(["train.py"], tmp_path)
    assert said(run)[: len(python.stderr.splitlines())] == python.stderr.splitlines()
    assert said(run)[len(python.stderr.splitlines()) :] == [
        wrote("train.trace.json.gz"),
        "overlapscope: The program made only 2 of the 29 steps needed (22 before the recording, 2 of warm-up and "
        "5 to judge); the recording is used as it is. --plain-steps 0 needs 6.",
        NO_GPU,
    ]
    assert steps(tmp_path / "train.trace.json.gz") == [0, 1]
    assert any(event["name"] == "[memory]" for event in content(tmp_path / "train.trace.json.gz")["traceEvents"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_program_that_is_told_to_stop_leaves_its_trace_and_dies_of_the_signal(
    number: signal.Signals, tmp_path: Path
) -> None:
    write(
        tmp_path / "train.py",
        TRAIN + "import time\nfor _ in range(45): train()\nopen('ready', 'w').close()\ntime.sleep(600)\n",
    )
    process = forked.Program([*FORKED, "train.py"], tmp_path)
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == -number
    assert stderr.count(wrote("train.trace.json.gz")) == 1
    assert ("KeyboardInterrupt" in stderr) == (number == signal.SIGINT)
    assert steps(tmp_path / "train.trace.json.gz") == list(range(22, 29))
    assert timed(tmp_path / "train.trace.json.gz") == (10, 10)


def test_a_signal_to_stop_waits_until_a_trace_is_written_and_is_the_forked_child_s_own_affair(tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "from overlapscope.recorder.main_thread import Termination, held\n"
        "termination = Termination(lambda: print('last words', flush=True))\n"
        "termination.watch()\n"
        "child = os.fork()\n"
        "if child == 0: signal.pause()\n"
        "os.kill(child, signal.SIGTERM)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\n"
        "with held(), held():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('written', flush=True)\n"
        "print('never')\n"
    )
    done = forked.run(["-c", code], tmp_path)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
    assert done.stdout == f"{-signal.SIGTERM}\nwritten\nlast words\n"


def test_whatever_the_program_does_the_trace_comes_where_it_was_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "out" / "x.trace.json.gz", "an old one")
    write(
        tmp_path / "program.py",
        "import multiprocessing, os, sys\n"
        "import overlapscope, torch\n"
        "os.chdir('/')\n"
        "def child(): overlapscope.step(); torch.ones(3) * 3\n"
        "process = multiprocessing.get_context('fork').Process(target=child)\n"
        "process.start(); process.join()\n"
        "print(process.exitcode)\n"
        "torch.ones(3) / 3\n"
        "sys.stderr = sys.stdout = None\n"
        "sys.exit(4)\n",
    )
    run = forked.run([*FORKED, "--force", "-o", "out/x.trace.json.gz", "program.py"], tmp_path)
    assert (run.returncode, run.stdout) == (4, "0\n")
    assert said(run) == [
        wrote("out/x.trace.json.gz"),
        "overlapscope: The program marked no step, so all of it was recorded.",
        "overlapscope: the program forked processes (1) after it had imported torch. Those cannot be recorded; with "
        "multiprocessing's start method spawn, --subprocesses records them.",
        NO_GPU,
    ]
    recorded = names(tmp_path / "out" / "x.trace.json.gz")
    assert "aten::div" in recorded and "aten::mul" not in recorded


def test_each_rank_of_torchrun_writes_its_own_file_and_they_load_as_one_job(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n" + TRAIN + "for _ in range(20):\n"
        "    train()\n"
        "    for parameter in model.parameters(): dist.all_reduce(parameter.grad)\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()\n",
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    schedule = ["--active", "2", "--plain-steps", "2"]
    run = execute([*launcher, "-m", "overlapscope", "run", *schedule, "train.py"], tmp_path, OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr
    first, times, *rest = [line for line in said(run) if line.startswith("overlapscope")]
    assert first == wrote("train.traces/rank0.trace.json.gz").replace("overlapscope", "overlapscope (rank 0)", 1)
    assert times.startswith("overlapscope (rank 0): a step takes ")
    assert rest == [
        NO_GPU.replace("overlapscope", "overlapscope (rank 0)", 1),
        "overlapscope (rank 0): this is rank 0; `overlapscope analyze train.traces` shows all ranks.",
    ]
    paths = [tmp_path / "train.traces" / f"rank{rank}.trace.json.gz" for rank in (0, 1)]
    assert [load(path).rank for path in expand([str(tmp_path / "train.traces")])] == [0, 1]
    assert [steps(path) for path in paths] == [[11, 12, 13, 14]] * 2
    assert [timed(path) for path in paths] == [(2, 2)] * 2
    again = forked.run([*FORKED, "train.py"], tmp_path, environment={"RANK": "1", "WORLD_SIZE": "2"})
    assert again.returncode == 2 and "rank1.trace.json.gz: already exists" in again.stderr


def test_srun_tells_the_rank_and_a_file_name_may_say_where_it_stands(tmp_path: Path) -> None:
    write(tmp_path / "program.py", "import torch; torch.ones(3) * 3\n")
    for rank in ("0", "1"):
        command = [*FORKED, "-o", "{host}/r{rank}.json", "program.py"]
        run = forked.run(command, tmp_path, environment={"SLURM_PROCID": rank, "SLURM_NTASKS": "2"})
        assert run.returncode == 0, run.stderr
        if rank == "0":
            host = socket.gethostname()
            assert f"overlapscope (rank 0): wrote {host}/r0.json, " in run.stderr
            assert f"`overlapscope analyze '{host}/r*.json'` shows all ranks." in run.stderr
    assert sorted(one.name for one in (tmp_path / host).iterdir()) == ["r0.json", "r1.json"]
    run = forked.run([*FORKED, "-o", "x.{n}.json", "program.py"], tmp_path)
    assert run.returncode == 2 and "{n} is not a placeholder" in run.stderr


SPAWNS = (
    "import os, subprocess, sys, torch, torch.distributed as dist, torch.multiprocessing as mp\n"
    "def train(rank):\n"
    "    dist.init_process_group('gloo', init_method='file://' + os.path.abspath('store'), rank=rank, world_size=2)\n"
    "    model = torch.nn.Linear(2, 2)\n"
    "    optimizer = torch.optim.SGD(model.parameters())\n"
    "    for _ in range(4): model(torch.ones(2)).sum().backward(); optimizer.step()\n"
    "    dist.destroy_process_group()\n"
    "if __name__ == '__main__':\n"
    "    loader = torch.utils.data.DataLoader(range(4), num_workers=1, multiprocessing_context='spawn')\n"
    "    print(len(list(loader)))\n"
    "    mp.spawn(train, nprocs=2)\n"
    "    subprocess.run([sys.executable, '-c', 'import torch, overlapscope; overlapscope.step(); print(1)'])\n"
)


def test_processes_that_the_program_starts_are_recorded_where_that_is_asked_for(tmp_path: Path) -> None:
    program = write(tmp_path / "program.py", SPAWNS)
    (tmp_path / "program.traces").mkdir()
    write(tmp_path / "program.traces" / "rank7.trace.json.gz", "an earlier run's")
    command = [*FORKED, "--force", "--subprocesses", "--wait", "0", "--plain-steps", "0", program.name]
    run = forked.run(command, tmp_path)
    assert run.returncode == 0 and run.stdout == "4\n1\n", run.stderr
    assert (
        "overlapscope: processes that the program started wrote traces (3); `overlapscope analyze program.traces`"
        in (run.stderr)
    )
    other, *ranks = sorted((tmp_path / "program.traces").iterdir())
    assert re.fullmatch(r"pid\d+\.trace\.json\.gz", other.name)
    assert [one.name for one in ranks] == ["rank0.trace.json.gz", "rank1.trace.json.gz"]
    assert [steps(one) for one in ranks] == [[1, 2, 3]] * 2
    assert forked.run([*FORKED, "--subprocesses", "-o", "program.json.gz", program.name], tmp_path).returncode == 2


def test_processes_that_the_program_starts_are_told_of_but_for_those_that_load_its_data(tmp_path: Path) -> None:
    write(
        tmp_path / "program.py",
        "import multiprocessing, subprocess, sys\n"
        "def work(): pass\n"
        "if __name__ == '__main__':\n"
        "    import torch\n"
        "    print(len(list(torch.utils.data.DataLoader(range(4), num_workers=1))))\n"
        "    for _ in range(2):\n"
        "        one = multiprocessing.get_context('spawn').Process(target=work); one.start(); one.join()\n"
        "    subprocess.run([sys.executable, '-c', 'print(1)'])\n",
    )
    run = forked.run([*FORKED, "program.py"], tmp_path)
    assert run.returncode == 0 and run.stdout == "4\n1\n", run.stderr
    assert "started Python processes (3), which were not recorded; --subprocesses" in run.stderr


def test_a_program_that_marks_its_steps_itself_is_told_of_no_helpers(tmp_path: Path) -> None:
    write(
        tmp_path / "program.py",
        "import overlapscope, subprocess, sys, torch\n"
        "subprocess.run([sys.executable, '-c', 'print(1)'])\n"
        "for _ in range(3): torch.ones(3) * 3; overlapscope.step()\n",
    )
    run = forked.run([*FORKED, "program.py"], tmp_path)
    assert run.returncode == 0 and "processes" not in run.stderr


def test_the_analysis_is_that_of_analyze_and_goes_to_stderr(tmp_path: Path) -> None:
    trace = Path("traces/pipeline_1stream.json.gz").absolute()
    code = (
        "import sys\nfrom overlapscope.commands.run import apart\n"
        "apart('analyze', sys.argv[1], '--max-size', str(10**9))"
    )
    write(tmp_path / "rich.py", "1 / 0")
    done = execute([sys.executable, "-P", "-c", code, str(trace)], tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == execute([sys.executable, "-P", "-m", "overlapscope", "analyze", str(trace)], tmp_path).stdout


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_analysis_follows(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        "import os\n" + TRAIN + "os.environ['CUDA_VISIBLE_DEVICES'] = '0'\nmodel.cuda()\n"
        "for _ in range(45):\n"
        "    model(torch.ones(4, 8).cuda()).sum().backward(); optimizer.step()\n"
        "print('ran')\n",
    )
    run = execute([*RUN, "train.py"], tmp_path)
    assert (run.returncode, run.stdout) == (0, "ran\n")
    assert steps(tmp_path / "train.trace.json.gz") == list(range(22, 29))
    plain = load(tmp_path / "train.trace.json.gz").plain_steps
    assert [len(side.device_ns) for side in (plain.before, plain.after)] == [10, 10]
    lines = said(run)
    assert wrote("train.trace.json.gz") in lines
    assert any(line.startswith("train.trace.json.gz, ") for line in lines)
    assert any(line.startswith("where the time goes") for line in lines)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_open_ends_in_the_dashboard(tmp_path: Path) -> None:
    pytest.importorskip("dash")
    write(
        tmp_path / "train.py",
        TRAIN + "model.cuda()\n"
        "for _ in range(12):\n"
        "    model(torch.ones(4, 8).cuda()).sum().backward(); optimizer.step()\n"
        "print('ran')\nraise SystemExit(3)\n",
    )
    run = subprocess.Popen(
        [*RUN, "--open", "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stderr is not None
    lines = []
    for line in run.stderr:
        lines.append(line)
        if (address := re.search(r"Serving at (\S+)", line)) is not None:
            break
    assert address is not None and any(line.startswith("train.trace.json.gz, ") for line in lines), lines
    with build_opener(HTTPCookieProcessor()).open(address[1]) as answer:
        assert b"overlapscope" in answer.read()
    os.killpg(run.pid, signal.SIGINT)
    output, rest = run.communicate(timeout=60)
    assert (run.returncode, output, rest) == (3, "ran\n", "Stopped.\n")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_program_s_own_profiler_records_sync_events(tmp_path: Path) -> None:
    write(
        tmp_path / "own.py",
        TRAIN + "model.cuda()\n"
        "with torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=2)) as p:\n"
        "    for _ in range(6):\n"
        "        model(torch.ones(4, 8).cuda()).sum().item(); p.step()\n",
    )
    run = execute([*RUN, "own.py"], tmp_path)
    assert run.returncode == 0, run.stderr
    trace = tmp_path / "own.trace.json.gz"
    assert steps(trace) == [2, 3]
    assert any(event.get("cat") == "cuda_sync" for event in content(trace)["traceEvents"])
    assert any(line.startswith("own.trace.json.gz, ") for line in said(run))


def test_a_forked_child_that_exits_while_its_parent_is_recorded_exits_as_without(tmp_path: Path) -> None:
    """Under a profiler Kineto would have it wait for ever (torch 2.13)."""
    write(
        tmp_path / "program.py",
        "import atexit, os, sys, torch\n"
        "torch.ones(3) * 3\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    atexit.register(print, 'bye')\n"
        "    print('child')\n"
        "    sys.exit(5)\n"
        "_, status = os.waitpid(pid, 0)\n"
        "print(os.waitstatus_to_exitcode(status))\n",
    )
    run = forked.run([*FORKED, "program.py"], tmp_path)
    assert (run.returncode, run.stdout) == (0, "child\nbye\n5\n")
    assert len(list(tmp_path.glob("*.gz"))) == 1
