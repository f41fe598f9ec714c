"""Sampling the host after the recording. Each program is a real process; py-spy and the system are the real ones."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.recorder.sampling.host_sampler import OutsideSampler
from overlapscope.trace.host_activity import HostActivity
from tests.support import forked
from tests.support.run_command import write

pytest.importorskip("torch", reason="records with torch")
if sys.platform != "linux":
    pytest.skip("samples on Linux only", allow_module_level=True)

ATTEMPTS = 3
"""The sampler gives up on a machine that is busy for seconds."""
HEAD = """
import ctypes, os, sys, threading, time
import overlapscope

def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

def first(seconds):
    compute(seconds)

def second(seconds):
    compute(seconds)

def without_rights(*, readable):
    "Drop the rights of root, also for programs that this one starts."
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        assert libc.prctl(28, 1, 0, 0, 0) == 0
        assert libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
    if not readable:
        assert libc.prctl(4, 0, 0, 0, 0) == 0

def train(step, most=100_000):
    until = time.monotonic() + 40
    with overlapscope.record("x.json", wait=0, active=2, plain_steps=1) as recording:
        for number in range(most):
            if "host_activity" in open("x.json").read(1 << 16) if os.path.exists("x.json") else False:
                break
            if time.monotonic() > until:
                break
            step()
            recording.step()
"""


def sampled(text: str, tmp_path: Path, *, environment: Mapping[str, str] | None = None) -> tuple[HostActivity, str]:
    """Return the activity in the trace of a program, and the messages of the program."""
    write(tmp_path / "train.py", HEAD + text)
    run = forked.run(["train.py"], tmp_path, environment=environment, unloads=False)
    assert run.returncode == 0, run.stderr
    return ov.load(tmp_path / "x.json", cache=False).host_activity, run.stderr


def activity_of(text: str, tmp_path: Path, *, environment: Mapping[str, str] | None = None) -> HostActivity:
    for _ in range(ATTEMPTS):
        activity, messages = sampled(text, tmp_path, environment=environment)
        if activity:
            return activity
    pytest.fail(messages)


def functions(activity: HostActivity) -> Counter[str]:
    """Return the number of samples of the main thread in which a function of the program was under way."""
    counts: Counter[str] = Counter()
    for stack in activity.stacks:
        if stack.thread == activity.thread:
            counts.update({activity.frames[frame].function: stack.samples for frame in stack.frames})
    return counts


def share(activity: HostActivity, function: str) -> float:
    counts = functions(activity)
    return counts[function] / (counts["first"] + counts["second"])


class TestStacks:
    """Stacks of the main thread."""

    def test_lines_have_the_share_of_their_time(self, tmp_path: Path) -> None:
        activity = activity_of("train(lambda: (first(0.007), second(0.003)))", tmp_path)
        assert activity.sampler.startswith("py-spy ") and activity.interval_ns == 10_000_000
        assert activity.steps >= 2 and activity.span_ns >= 2_000_000_000 and activity.facts.span_ns >= 1_000_000_000
        # 70 %, of at least some 100 samples.
        assert share(activity, "first") == pytest.approx(0.7, abs=0.25)
        (line,) = {frame.line for frame in activity.frames if frame.function == "first"}
        assert (HEAD.splitlines()[line - 1]).strip() == "compute(seconds)"
        assert {frame.file for frame in activity.frames if frame.function == "first"} == {str(tmp_path / "train.py")}

    def test_under_run_they_begin_with_the_program(self, tmp_path: Path) -> None:
        loop = "import torch\nmodel = torch.nn.Linear(4, 4)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        loop += "for _ in range(100_000):\n"
        loop += "    if b'host_activity' in open('train.trace.json', 'rb').read(1 << 16): break\n"
        loop += "    model(torch.ones(4, 4)).sum().backward(); optimizer.step(); first(0.02)\n"
        write(tmp_path / "train.py", HEAD + "open('train.trace.json', 'w').close()\n" + loop)
        command = ["-m", "overlapscope", "run", "--force", "-o", "train.trace.json", "train.py"]
        run = forked.run(command, tmp_path, unloads=False)
        assert run.returncode == 0, run.stderr
        activity = ov.load(tmp_path / "train.trace.json", cache=False).host_activity
        assert activity, run.stderr
        outermost: Counter[tuple[str, str]] = Counter()
        for stack in activity.stacks:
            if stack.thread == activity.thread:
                outermost[activity.frames[stack.frames[0]].file, activity.frames[stack.frames[0]].function] += (
                    stack.samples
                )
        # py-spy may see a generator before it is linked to its caller.
        assert outermost[str(tmp_path / "train.py"), "<module>"] >= 0.95 * outermost.total()
        assert "No Python stacks" not in run.stderr

    def test_threads_that_sleep_do_not_run_and_wait_for_no_file(self, tmp_path: Path) -> None:
        other = "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        activity = activity_of(f"{other}train(lambda: time.sleep(0.02))", tmp_path)
        running = sum(stack.running for stack in activity.stacks)
        assert running <= sum(stack.samples for stack in activity.stacks) / 3
        assert len({stack.thread for stack in activity.stacks}) == 2
        assert activity.states.file_io == 0 and activity.files == {}
        assert activity.states.other_wait > activity.states.total / 2


class TestStates:
    """States of the main thread."""

    def test_a_thread_that_computes_makes_it_wait_for_the_gil(self, tmp_path: Path) -> None:
        other = "threading.Thread(target=compute, args=(600,), daemon=True).start()\n"
        states = activity_of(f"{other}train(lambda: first(0.01))", tmp_path).states
        assert states.gil_wait > states.total / 20
        assert states.file_io == 0

    def test_a_flush_is_of_its_file(self, tmp_path: Path) -> None:
        save = "def save():\n    with open('log', 'wb') as file:\n        file.write(bytes(1 << 22)); file.flush()\n"
        save += "        os.fsync(file.fileno())\n"
        activity = activity_of(f"{save}train(lambda: (save(), time.sleep(0.01)))", tmp_path)
        assert activity.states.other_wait > activity.states.gil_wait == 0
        assert set(activity.files) <= {str(tmp_path / "log")}
        # With a fast disk, no sample may find the thread waiting.
        assert sum(activity.files.values()) <= activity.states.file_io <= activity.states.total

    def test_a_pipe_is_no_file(self, tmp_path: Path) -> None:
        dots = "read, write = os.pipe()\ndef dot():\n    while True: time.sleep(0.01); os.write(write, b'.')\n"
        start = "threading.Thread(target=dot, daemon=True).start()\n"
        activity = activity_of(f"{dots}{start}train(lambda: os.read(read, 1))", tmp_path)
        assert activity.states.file_io == 0 and activity.states.other_wait > activity.states.total / 2


class TestFacts:
    """Facts of the system and of Python."""

    def test_collections_have_their_time(self, tmp_path: Path) -> None:
        garbage = "import gc\nkept = [[] for _ in range(300_000)]\n"
        facts = activity_of(f"{garbage}train(lambda: gc.collect())", tmp_path).facts
        assert facts.gc_collections is not None and facts.gc_collections >= facts.steps >= 2
        assert facts.gc_pause_ns is not None and facts.span_ns / 2 < facts.gc_pause_ns <= facts.span_ns

    def test_work_in_the_kernel_has_its_time(self, tmp_path: Path) -> None:
        facts = activity_of("train(lambda: os.urandom(1 << 22))", tmp_path).facts
        assert facts.kernel_ns is not None and 0 < facts.kernel_ns <= facts.span_ns

    def test_other_threads_have_their_time_and_cpus_and_threads_are_counted(self, tmp_path: Path) -> None:
        busy = "import hashlib, threading\ndef work():\n    while True: hashlib.sha256(bytes(1 << 22))\n"
        busy += "threading.Thread(target=work, daemon=True).start()\n"
        facts = activity_of(f"{busy}train(lambda: first(0.01))", tmp_path).facts
        bound = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nimport torch\ntorch.set_num_threads(3)\n"
        alone = activity_of(f"{bound}train(lambda: first(0.01))", tmp_path).facts
        assert facts.other_threads_cpu_ns is not None and alone.other_threads_cpu_ns is not None
        assert 2 * alone.other_threads_cpu_ns / alone.span_ns < facts.other_threads_cpu_ns / facts.span_ns
        assert (alone.usable_cpus, alone.torch_threads) == (1, 3)
        assert alone.run_queue_ns is None or 0 <= alone.run_queue_ns <= alone.span_ns


@pytest.fixture
def without_py_spy(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a Python whose py-spy was lost."""
    package = tmp_path / "lost" / "py_spy-0.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: py-spy\nVersion: 0.0\n")
    (package / "RECORD").touch()
    return {"PYTHONPATH": f"{package.parent}:{forked.FINDS_US['PYTHONPATH']}", "PATH": "/usr/bin:/bin"}


class TestHindrances:
    """Programs that cannot be sampled, or in part."""

    def test_without_py_spy_there_are_states_and_the_console_says_how_to_install_it(
        self, tmp_path: Path, without_py_spy: dict[str, str]
    ) -> None:
        program = "train(lambda: (first(0.007), second(0.003)))"
        activity, messages = sampled(program, tmp_path, environment=without_py_spy)
        assert (activity.sampler, activity.stacks) == ("", ())
        assert activity.states.total > 0
        (line,) = [line for line in messages.splitlines() if "py-spy" in line]
        assert re.search(r"sampled: py-spy is not installed \(`pip install .*\[record\]'`\)\.$", line)

    def test_an_ordinary_user_is_sampled(self, tmp_path: Path) -> None:
        program = "without_rights(readable=True)\ntrain(lambda: (first(0.007), second(0.003)))"
        activity, messages = sampled(program, tmp_path)
        # Yama, or a container, may still forbid py-spy to read it.
        assert ("No Python stacks" in messages) == (not activity.stacks)

    def test_the_console_says_why_a_program_that_may_not_be_read_has_no_stacks(self, tmp_path: Path) -> None:
        program = "without_rights(readable=False)\ntrain(lambda: (first(0.007), second(0.003)))"
        activity, messages = sampled(program, tmp_path)
        assert activity and not activity.stacks and activity.facts.steps >= 2
        assert activity.states.total == 0
        assert messages.count("py-spy may not read the program. In a container, the capability SYS_PTRACE") == 1

    @pytest.mark.parametrize("steps", [12, 60])
    def test_a_program_that_ends_meanwhile_has_its_trace(self, steps: int, tmp_path: Path) -> None:
        activity, messages = sampled(f"train(lambda: first(0.01), most={steps})", tmp_path)
        assert not activity or activity.steps >= 2
        assert "No Python stacks" not in messages and "Traceback" not in messages
        assert len(ov.load(tmp_path / "x.json", cache=False).plain_steps.after.host_ns) == 1

    def test_long_work_at_the_end_is_no_step(self, tmp_path: Path) -> None:
        work = "train(lambda: time.sleep(0.05), most=45)"
        last = "            recording.step()\n"
        write(tmp_path / "train.py", HEAD.replace(last, f"{last}        second(2)\n") + work)
        run = forked.run(["train.py"], tmp_path, unloads=False)
        assert run.returncode == 0, run.stderr
        activity = ov.load(tmp_path / "x.json", cache=False).host_activity
        assert not activity or functions(activity)["second"] <= activity.span_ns / activity.interval_ns / 5

    @pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os.execv('/bin/true', ['true'])"])
    def test_nothing_is_left_running_after_a_program_that_dies_meanwhile(self, end: str, tmp_path: Path) -> None:
        step = f"count = [0]\ndef step():\n    count[0] += 1\n    if count[0] == 60: {end}\n    time.sleep(0.02)\n"
        write(tmp_path / "train.py", f"{HEAD}{step}train(step)")
        process = forked.ForkedProgram(["train.py"], tmp_path)
        process.wait()
        for _ in range(200):
            listed = subprocess.run(["ps", "-A", "-o", "args"], capture_output=True, text=True, check=True).stdout
            left = [
                line for line in listed.splitlines() if re.search(rf"(outside_script\.py|--pid) {process.pid}\b", line)
            ]
            if not left:
                break
            time.sleep(0.1)
        assert not left

    def test_a_step_that_forks_is_sampled_and_its_children_are_not_waited_for(self, tmp_path: Path) -> None:
        step = "def step():\n    child = os.fork()\n    if child == 0: os._exit(0)\n"
        step += "    assert os.waitpid(child, 0) == (child, 0)\n    first(0.02)\n"
        assert functions(activity_of(f"{step}train(step)", tmp_path))["first"] > 0


def test_no_program_is_sampled_without_timed_steps(tmp_path: Path) -> None:
    with_none = HEAD.replace("plain_steps=1", "plain_steps=0")
    write(tmp_path / "train.py", with_none + "train(lambda: time.sleep(0.01), most=300)")
    run = forked.run(["train.py"], tmp_path, unloads=False)
    assert run.returncode == 0, run.stderr
    assert not ov.load(tmp_path / "x.json", cache=False).host_activity


def test_a_process_that_samples_ends_with_its_socket(tmp_path: Path) -> None:
    sampler = OutsideSampler(1)
    while not sampler.ready:
        assert not sampler.ended
        time.sleep(0.01)
    sampler.stop()
    assert sampler.ended
