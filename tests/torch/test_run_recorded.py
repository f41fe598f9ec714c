"""`overlapscope run`: the trace that a program leaves, however it ends. Each program is a real process."""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.recorded import content, ops_and_ranges, steps, timed
from tests.support.run_command import AS_IT_IS, FORKED, RUN, SHORT, TRAIN, execute, messages, no_gpu, ours, write, wrote

pytest.importorskip("torch", reason="records with torch")


def test_steps_are_recorded_again_at_the_pace_at_which_the_program_spends_most_of_its_time(tmp_path: Path) -> None:
    loop = "for index in range(400):\n    time.sleep(0.1 if index < 60 else 0.02); train()\n"
    write(tmp_path / "train.py", f"import time\n{TRAIN}{loop}")
    run = forked.run([*FORKED, "train.py"], tmp_path)
    assert run.returncode == 0, run.stderr
    recorded = steps(tmp_path / "train.trace.json.gz")
    # Where steps differ by chance, more than seven are recorded.
    assert len(recorded) >= 7 and recorded[0] > 120
    assert run.stderr.count("wrote train.trace.json.gz") == 1
    assert re.search(r"spends more of its time in steps of \d\d\.\d ms\. Steps after step \d{3} are rec", run.stderr)
    assert re.search(r"\d{3} steps in [\d.]+ s, mean \d\d\.\d ms, median \d\d\.\d ms, most \d", run.stderr)


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
        "    if index == 27: print(os.path.exists('train.trace.json.gz'))\n",
    )
    run = execute([*RUN, "--wait", "3", "--active", "3", "--stacks", "--shapes", "train.py", "--wait", "9"], tmp_path)
    assert run.returncode == 0
    assert run.stdout == "['train.py', '--wait', '9'] False False\n1 torch.nn\nFalse\nTrue\n"
    first, times, last = ours(run)
    # Steps as short as these may take longer on one side of the recording.
    assert re.match(r"overlapscope: without the profiler a step takes .*(\(measured| after it: the program or )", times)
    assert times.endswith(" Steps: calls of SGD.step, 3 optimizer steps in turn.")
    assert (first, last) == (wrote("train.trace.json.gz"), no_gpu())
    trace = tmp_path / "train.trace.json.gz"
    # The first 8 are rehearsed, 2 settle, 10 are timed.
    assert steps(trace) == [20, 21, 22, 23, 24]
    assert content(trace)["overlapscope"]["warm_up_steps"] == 2
    assert "MainThread" in content(trace)["overlapscope"]["threads"].values()
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
    assert ours(run) == [wrote("x.json"), no_gpu()]
    # The optimizer steps five times until the program marks the end of that step, and then five more.
    assert steps(tmp_path / "x.json") == list(range(5 + 5))


def test_a_program_that_dies_leaves_its_trace_and_its_traceback(tmp_path: Path) -> None:
    write(tmp_path / "train.py", TRAIN + "train(); train()\ndef f(): 1 / 0\nf()\n")
    run = forked.run([*FORKED, "--memory", "train.py"], tmp_path)
    assert run.returncode == 1
    python = forked.run(["train.py"], tmp_path)
    assert messages(run)[-len(python.stderr.splitlines()) :] == python.stderr.splitlines()
    assert ours(run) == [
        wrote("train.trace.json.gz"),
        SHORT.format(2).replace("its first steps were recorded instead", AS_IT_IS),
        no_gpu(),
    ]
    assert steps(tmp_path / "train.trace.json.gz") == [0, 1]
    assert any(event["name"] == "[memory]" for event in content(tmp_path / "train.trace.json.gz")["traceEvents"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_program_that_is_told_to_stop_leaves_its_trace_and_dies_of_the_signal(
    number: signal.Signals, tmp_path: Path
) -> None:
    write(
        tmp_path / "train.py",
        TRAIN
        + "import time\nfor _ in range(45): train(); time.sleep(0.002)\nopen('ready', 'w').close()\ntime.sleep(600)\n",
    )
    process = forked.ForkedProgram([*FORKED, "train.py"], tmp_path)
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
        "from overlapscope.recorder.main_thread import held, undisturbed\n"
        "with held(), held():\n"
        "    undisturbed(even_by_the_end=True)\n"
        "    child = os.fork()\n"
        "    if child == 0: signal.pause()\n"
        "    os.kill(child, signal.SIGTERM)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('written', flush=True)\n"
        "print('never')\n"
    )
    done = forked.run(["-c", code], tmp_path)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
    assert done.stdout == f"{-signal.SIGTERM}\nwritten\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_to_stop_ends_a_program_inside_a_long_call_as_under_python(
    number: signal.Signals, tmp_path: Path
) -> None:
    write(
        tmp_path / "train.py",
        f"{TRAIN}import signal, torch\ntrain()\nprint(signal.getsignal({number}) is signal.SIG_DFL, flush=True)\n"
        # No handler in Python would be called before this comes to its end: in days.
        "open('ready', 'w').close()\nsum(range(10 ** 15))\n",
    )
    (tmp_path / "train.trace.json.gz").write_text("of an earlier run")
    with (tmp_path / "stderr").open("w") as stderr:
        process = forked.ForkedProgram([*FORKED, "--force", "train.py"], tmp_path, stderr=stderr.fileno())
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    process.wait()
    # By the process beside it, which may take its time.
    while "the previous trace is now train.trace.json.gz.old." not in (tmp_path / "stderr").read_text():
        time.sleep(0.02)
    assert process.communicate()[0] == "True\n" and process.returncode == -number
    assert "so there is no trace" in (tmp_path / "stderr").read_text()
    assert {path.name for path in tmp_path.glob("train.trace*")} == {"train.trace.json.gz.old"}


@pytest.mark.parametrize("early", [True, False])
def test_a_file_that_is_called_as_a_former_trace_would_be_is_left_alone(early: bool, tmp_path: Path) -> None:
    write(tmp_path / "x.json", "of an earlier run")
    write(tmp_path / "x.json.old", "the user's own")
    write(tmp_path / "program.py", ("" if early else TRAIN + "train()\n") + "import os; os._exit(3)\n")
    with (tmp_path / "stderr").open("w") as stderr:
        process = forked.ForkedProgram(
            [*FORKED, "--force", "-o", "x.json", "program.py"], tmp_path, stderr=stderr.fileno()
        )
    process.communicate()
    # A program that ends before its first step leaves this to the process beside it, which may take its time.
    while early and "the previous trace is now x.json.1." not in (tmp_path / "stderr").read_text():
        time.sleep(0.02)
    assert (process.returncode, (tmp_path / "x.json.old").read_text()) == (3, "the user's own")
    assert [path.read_text() for path in tmp_path.glob("x.json.1")] == ["of an earlier run"] * early
    assert (tmp_path / "stderr").read_text().count("the previous trace is now x.json.1.") == early
    assert (tmp_path / "x.json").exists() != early


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
    assert ours(run) == [
        wrote("out/x.trace.json.gz"),
        "overlapscope: The program marked no step, so all of it was recorded.",
        no_gpu(),
        "overlapscope: the program forked processes (1) after it had imported torch. Those cannot be recorded; with "
        "multiprocessing's start method spawn, --subprocesses records them.",
    ]
    recorded = ops_and_ranges(tmp_path / "out" / "x.trace.json.gz")
    assert "aten::div" in recorded and "aten::mul" not in recorded


def test_the_analysis_is_that_of_analyze_and_goes_to_stderr(tmp_path: Path) -> None:
    trace = Path("traces/pipeline_1stream.json.gz").absolute()
    code = (
        "import sys\nfrom overlapscope.base.child import run_overlapscope\n"
        "run_overlapscope('analyze', sys.argv[1], '--max-size', str(10**9), errors=2)"
    )
    write(tmp_path / "rich.py", "1 / 0")
    done = execute([sys.executable, "-P", "-c", code, str(trace)], tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == execute([sys.executable, "-P", "-m", "overlapscope", "analyze", str(trace)], tmp_path).stdout


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


def test_a_process_of_the_program_can_begin_with_exit_itself(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        "import multiprocessing, os, torch\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=os._exit, args=(3,))\n"
        "    process.start(); process.join(); print(process.exitcode)\n",
    )
    run = execute([*RUN, "train.py"], tmp_path)
    assert (run.returncode, run.stdout) == (0, "3\n"), run.stderr
