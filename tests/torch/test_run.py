"""Programs under `overlapscope run` behave as if Python ran them. Each is a real process."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.run_command import RUN, Done, execute, write


def without_ours(stderr: str) -> str:
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith("overlapscope: "))


def alike(arguments: Sequence[str], cwd: Path, *, flags: Sequence[str] = (), stdin: str = "") -> Done:
    """Return how the program ended under overlapscope, and check that it ends alike under Python alone."""
    python = [sys.executable, *flags]
    alone = execute([*python, *arguments], cwd, stdin=stdin)
    run = execute([*python, "-m", "overlapscope", "run", *arguments], cwd, stdin=stdin)
    assert (run.returncode, run.stdout, without_ours(run.stderr)) == (alone.returncode, alone.stdout, alone.stderr)
    return run


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
    """Return the same program as a script, a directory, a zip file, a package and a module of a package."""
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
        "import sys; sys.exit('a text')",
        "import sys; sys.exit(['a', 'list'])",
        "def f(): 1 / 0\ntry: f()\nexcept ZeroDivisionError as e: raise ValueError('two\\nlines') from e",
        "raise ExceptionGroup('several', [KeyError(1), OSError(2, 'two')])",
        "import nowhere_to_be_found",
        "x = = 1",
        "x = '\\0'",
        "from overlapscope.errors import UsageError\nraise UsageError('its own')",
        "import sys\nsys.excepthook = lambda *error: print('hook', error[:2], error[2].tb_frame.f_code.co_name)\n1 / 0",
        "import sys\ndef hook(*error): raise KeyError\nsys.excepthook = hook\n1 / 0",
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


CANNOT_RUN: list[tuple[list[str], str]] = [
    (["nowhere.py"], "nowhere.py: cannot be read (No such file or directory)"),
    (["empty"], "empty: has no __main__.py"),
    (["-m", "nowhere"], "No module named nowhere; name the module"),
    (["-m", "package.nowhere"], "No module named package.nowhere; name the module"),
    (["-m", "nowhere.inside"], "No module named nowhere; name the module"),
    (["-m", "empty"], "'empty' is a package and cannot be directly executed; name the module"),
    (["-m", "sys"], "No code object available for sys; name the module"),
    (["torchrun", "plain.py"], "torchrun [options] -m overlapscope run"),
    (["-m", "torch.distributed.run"], "python -m torch.distributed.run [options] -m overlapscope run"),
    (["python", "plain.py"], "overlapscope starts Python itself; leave out python."),
    (["--wait", "-1", "plain.py"], "wait is -1"),
    (["--active", "0", "plain.py"], "active is 0"),
    (["--max-size", "much", "plain.py"], "'much' is not a size"),
    (["--output", "x.txt", "plain.py"], "x.trace.json.gz"),
    (["--output", "no/where.json", "plain.py"], "the directory no does not exist"),
    (["--whole", "--wait", "3", "plain.py"], "--whole and --wait both choose what is recorded"),
    (["--output", "there.json", "there.json"], "there.json: is also an input"),
    (["there.ipynb"], "`overlapscope run -m IPython there.ipynb`"),
    (["--forty-two", "plain.py"], "--forty-two"),
    ([], "required: SCRIPT\n"),
]
RUN_EACH = """
import json, sys
from overlapscope.commands import main
for arguments in json.loads(sys.argv[1]):
    print(main(["run", *arguments]), flush=True)
    print("--", file=sys.stderr, flush=True)
"""


def test_what_cannot_be_run_is_reported_in_a_sentence_and_exits_2(programs: Path) -> None:
    (programs / "empty").mkdir()
    write(programs / "there.json", "mine")
    write(programs / "there.trace.json.gz", "mine")
    every = json.dumps([arguments for arguments, _ in CANNOT_RUN])
    run = execute([sys.executable, "-c", RUN_EACH, every], programs)
    assert (run.returncode, run.stdout) == (0, "2\n" * len(CANNOT_RUN)), run.stderr
    for (_, expected), errors in zip(CANNOT_RUN, run.stderr.split("--\n"), strict=False):
        assert expected in errors and "Traceback" not in errors
    assert (programs / "there.json").read_text() == (programs / "there.trace.json.gz").read_text() == "mine"
    assert not list(programs.glob("*.[0-9]"))


def test_a_program_without_torch_runs_and_is_told_why_there_is_no_trace(tmp_path: Path) -> None:
    write(tmp_path / "program.py", "import os\nif os.fork(): os.wait()\nprint('ran', flush=True)")
    run = execute([*RUN, "program.py"], tmp_path)
    assert (run.returncode, run.stdout) == (0, "ran\nran\n")
    assert run.stderr == "overlapscope: nothing was recorded: the program never imported torch.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]
