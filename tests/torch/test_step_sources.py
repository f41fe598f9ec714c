"""Tests of the steps that `overlapscope run` chooses for programs that mark none."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from msgspec import Struct

import overlapscope
from overlapscope.reading import load
from overlapscope.recorder.program_lines import CodeLine, line
from overlapscope.recorder.step_choice import SourceKind, StepSource
from overlapscope.recorder.step_sources import StepSources
from tests.support import forked

torch = pytest.importorskip("torch", reason="records with torch")
from torch.utils.data.dataloader import _BaseDataLoaderIter  # noqa: E402

HEAD = """
import threading, time, torch, overlapscope
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
x = torch.ones(4, 8)
class Net(nn.Module):
    def __init__(self): super().__init__(); self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    def forward(self, x): return self.layers(x)
net, other = Net(), Net()
batches = DataLoader(TensorDataset(torch.ones(240, 8)), batch_size=4)
def sgd(module): return torch.optim.SGD(module.parameters(), lr=0.01)
def adam(module): return torch.optim.Adam(module.parameters(), lr=0.01)
def train(count, optimizer):
    for _ in range(count): optimizer.zero_grad(); net(x).sum().backward(); optimizer.step()
"""


class SteppingProgram(Struct, frozen=True):
    """A program, and the origin of its steps."""

    text: str
    source: str
    """Event that ends each step."""
    options: tuple[str, ...] = ()
    inside: tuple[str, int] = ("aten::addmm", 4)
    """An op, and how often each recorded step has it."""


FORWARD = ("aten::addmm", 2)
GAN = """
critic, generator = adam(net), sgd(other)
for _ in range(45):
    critic.zero_grad(); (net(x).sum() - net(other(x).detach()).sum()).backward(); critic.step()
    generator.zero_grad(); net(other(x)).sum().backward(); generator.step()
"""
PROGRAMS = {
    "the program's marks": SteppingProgram(
        "optimizer = sgd(net)\nfor _ in range(45): train(2, optimizer); overlapscope.step()", "overlapscope.step()"
    ),
    "an optimizer": SteppingProgram("train(45, sgd(net))", "calls of SGD.step", inside=FORWARD),
    "a cross-validation that keeps its optimizers": SteppingProgram(
        "kept = [sgd(net) for _ in range(3)]\nfor optimizer in kept: train(25, optimizer)",
        "calls of SGD.step",
        inside=FORWARD,
    ),
    "a GAN": SteppingProgram(GAN, "calls of SGD.step, 2 optimizer steps in turn", inside=("aten::addmm", 10)),
    "no optimizer": SteppingProgram(
        "for _ in range(55):\n    net.zero_grad(); net(x).sum().backward()\n"
        "    for p in net.parameters(): p.data.add_(p.grad, alpha=-0.1)",
        "calls of backward() in program.py:16",
        inside=FORWARD,
    ),
    "tokens": SteppingProgram(
        "with torch.inference_mode():\n    y = net(x)\n    for _ in range(50): y = net(y).softmax(1)",
        "calls of Net.forward",
        inside=("aten::softmax", 1),
    ),
    "batches": SteppingProgram(
        "with torch.no_grad():\n    for (batch,) in batches: nn.functional.relu(net(batch))",
        "calls of Net.forward",
        inside=FORWARD,
    ),
    "a loader": SteppingProgram(
        "for (batch,) in batches: batch.exp()",
        "batches of a DataLoader of TensorDataset",
        options=("--steps-by", "loader"),
        inside=("aten::exp", 1),
    ),
    "a thread that goes on": SteppingProgram(
        "threading.Thread(target=train, args=(45, sgd(net))).start()", "calls of SGD.step", inside=FORWARD
    ),
    "each update by its name": SteppingProgram(
        GAN, "calls of Adam.step", options=("--steps-by", "Adam.step"), inside=("aten::addmm", 10)
    ),
    "a range by its name": SteppingProgram(
        "optimizer = sgd(net)\nfor index in range(45):\n"
        "    with torch.profiler.record_function(f'iteration {index}'): train(2, optimizer)",
        "ranges named iteration 0",
        options=("--steps-by", "iteration *"),
    ),
}


def test_a_program_in_our_own_folder_has_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    program = str(Path(overlapscope.__file__).with_name("train.py"))
    monkeypatch.setattr(sys.modules["__main__"], "__file__", program, raising=False)
    found: list[CodeLine] = []
    exec(
        compile("\nfound.append(line(frame(), waiting=0))", program, "exec"),
        {"found": found, "line": line, "frame": sys._getframe},
    )
    assert found == [CodeLine(program, 2)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_are_what_the_program_does_again_and_again(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    (tmp_path / "program.py").write_text(HEAD + program.text)
    run = forked.run(["-m", "overlapscope", "run", *program.options, "program.py"], tmp_path, unloads=False)
    assert run.returncode == 0, run.stderr
    assert f"Steps: {program.source}." in run.stderr
    trace = load(tmp_path / "program.trace.json.gz")
    assert trace.step_source == program.source
    notes = trace.annotations
    rows = [row for row in range(len(notes)) if notes.name(row).startswith("ProfilerStep#")]
    numbers = [int(notes.name(row).rpartition("#")[2]) for row in rows]
    assert numbers == list(range(numbers[0], numbers[0] + 7)) and len(trace.plain_steps.before.host_ns) == 10
    op, count = program.inside
    ops = trace.cpu_ops
    for row in rows:
        inside = (ops.start_ns >= notes.start_ns[row]) & (ops.start_ns < notes.end_ns[row])
        assert int((ops.named(lambda op_name: op_name == op) & inside).sum()) == count


def test_the_last_range_of_an_optimizer_ends_within_its_step(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(HEAD + "train(45, sgd(net))")
    assert forked.run(["-m", "overlapscope", "run", "program.py"], tmp_path, unloads=False).returncode == 0
    notes = load(tmp_path / "program.trace.json.gz").annotations
    updates = notes.take(notes.named(lambda name: name == "Optimizer.step#SGD.step"))
    steps = notes.take(notes.named(lambda name: name.startswith("ProfilerStep#")))
    assert len(updates) == len(steps) == 7
    assert (updates.end_ns <= steps.end_ns).all() and (updates.start_ns >= steps.start_ns).all()


def test_a_recording_finds_steps_and_undoes_what_it_did_to_find_them(tmp_path: Path) -> None:
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    call = torch.nn.Module._wrapped_call_impl.__code__
    before = torch.autograd.backward, call, _BaseDataLoaderIter.__next__, torch.cuda.CUDAGraph.replay
    with overlapscope.record(tmp_path / "x.json") as rec:
        assert torch.nn.Module._wrapped_call_impl.__code__ is not call
        for _ in range(60):
            net(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    call = torch.nn.Module._wrapped_call_impl.__code__
    assert before == (torch.autograd.backward, call, _BaseDataLoaderIter.__next__, torch.cuda.CUDAGraph.replay)
    assert "step" not in vars(optimizer)
    assert (rec.step_source, rec.notes) == ("calls of SGD.step", ())
    assert load(tmp_path / "x.json").plain_steps.before.host_ns


def test_a_scheduler_made_during_the_search_keeps_its_optimizer(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    optimizer = torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=1.0)
    with overlapscope.record(tmp_path / "x.json", plain_steps=0):
        optimizer.step()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(10):
            optimizer.step()
            scheduler.step()
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.5**10
    assert not [warning for warning in recwarn if "lr_scheduler" in str(warning.message)]


def test_compiled_modules_are_not_compiled_again_and_have_no_graph_break(tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    compiled = torch.compile(net, backend="eager")
    counters.clear()
    with overlapscope.record(tmp_path / "x.json", plain_steps=0) as rec, torch.no_grad():
        for _ in range(20):
            compiled(torch.ones(4, 8))
    with torch.no_grad():
        compiled(torch.ones(4, 8))
    assert rec.step_source == "calls of Sequential.forward"
    assert counters["frames"] == {"total": 1, "ok": 1} and not counters["graph_break"]


def test_a_name_that_no_call_has_is_answered_with_the_names_there_are(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(HEAD + "train(5, sgd(net))")
    run = forked.run(["-m", "overlapscope", "run", "--steps-by", "Encoder.*", "program.py"], tmp_path, unloads=False)
    assert run.returncode == 0
    (message,) = [line for line in run.stderr.splitlines() if "--steps-by Encoder.* finds no steps; " in line]
    assert "Net.forward" in message and "SGD.step" in message and "backward() in program.py:" in message


def test_a_misspelt_name_is_answered_with_the_right_one(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(HEAD + "train(5, sgd(net))")
    run = forked.run(["-m", "overlapscope", "run", "--steps-by", "optimiser", "program.py"], tmp_path)
    assert "--steps-by optimiser finds no steps (did you mean 'optimizer'?); the program calls " in run.stderr


def test_modules_of_any_kind_are_named_and_run_as_they_would(tmp_path: Path) -> None:
    class Odd(torch.nn.Linear):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.__dict__["parameters"] = {"lr": 0.1}

    for model in (torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4))), Odd()):
        with overlapscope.record(tmp_path / "x.json", plain_steps=0), torch.no_grad():
            for _ in range(20):
                model(torch.ones(4, 4))
        (tmp_path / "x.json").unlink()


class _Counting:
    """A method of the program's in the place of torch's, which has no code of its own."""

    def __init__(self, method: Any) -> None:
        self.method, self.calls = method, 0

    def __get__(self, owner: Any, kind: type) -> Any:
        return self if owner is None else partial(self, owner)

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return self.method(*args, **options)


def test_methods_that_the_program_has_replaced_by_objects_are_called_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backward, call = _Counting(torch.Tensor.backward), _Counting(torch.nn.Module._wrapped_call_impl)
    monkeypatch.setattr(torch.Tensor, "backward", backward)
    monkeypatch.setattr(torch.nn.Module, "_wrapped_call_impl", call)
    net = torch.nn.Linear(8, 8)
    with overlapscope.record(tmp_path / "x.json", steps_by="backward", plain_steps=0) as rec:
        for _ in range(20):
            net._wrapped_call_impl(torch.ones(4, 8)).sum().backward()
    assert backward.calls == call.calls == 20
    assert rec.step_source is not None and rec.step_source.startswith("calls of backward() in test_step_sources.py:")


def _counted(program: Callable[[], object]) -> int:
    """Return how many events of the optimizer that steps last a program has."""
    sources: list[StepSource] = []
    watched = StepSources(sources.append)
    watched.start([SourceKind.OPTIMIZER])
    program()
    watched.stop()
    assert "step" in vars(torch.optim.SGD) and not hasattr(torch.optim.SGD.step, "watch")
    return sources.count(sources[-1])


def _sgd() -> Any:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(3))])


def _pairs_of_folds() -> None:
    for _ in range(4):
        critic, generator = _sgd(), _sgd()
        for _ in range(40):
            critic.step()
            generator.step()


def _three_in_turn_after_a_warm_up() -> None:
    critic, actor, temperature = _sgd(), _sgd(), _sgd()
    for _ in range(10):
        critic.step()
    for _ in range(40):
        for optimizer in (actor, temperature, critic):
            optimizer.step()


def _step_replaced_by_hand() -> None:
    optimizer = _sgd()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    original = optimizer.step
    for _ in range(4):
        optimizer.step = partial(original)
        optimizer.step()
        optimizer.step = original


@pytest.mark.parametrize(
    ("program", "steps"),
    # Of three, the first step of the second seems to be of the first.
    [(_pairs_of_folds, 160), (_three_in_turn_after_a_warm_up, 51), (_step_replaced_by_hand, 4)],
)
def test_steps_of_an_optimizer_and_of_those_that_replace_it_count(program: Callable[[], object], steps: int) -> None:
    assert _counted(program) == steps


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_step_that_is_watched_takes_arguments_of_any_name(scheduled: bool) -> None:
    class Named(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None, step: int = 0, optimizer: int = 0) -> Any:
            return step, optimizer

    optimizer = Named([torch.nn.Parameter(torch.ones(3))])
    if scheduled:
        # It gives the optimizer a `step` of its own.
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    watched = StepSources(lambda _: None)
    watched.start([SourceKind.OPTIMIZER])
    assert [optimizer.step(step=number, optimizer=7) for number in range(3)] == [(0, 7), (1, 7), (2, 7)]
    watched.stop()


def test_a_class_of_optimizers_that_the_program_drops_is_freed() -> None:
    def train() -> weakref.ref[Any]:
        model = torch.nn.Linear(3, 3)

        class Mine(torch.optim.SGD):  # type: ignore[misc, name-defined]
            def step(self, closure: Any = None) -> Any:
                assert model is not None
                return super().step(closure)

        Mine(model.parameters()).step()
        return weakref.ref(model)

    watched = StepSources(lambda _: None)
    watched.start([SourceKind.OPTIMIZER])
    models = [train() for _ in range(3)]
    gc.collect()
    assert [model() for model in models] == [None] * 3
    watched.stop()


def test_an_optimizer_that_the_program_drops_is_freed(tmp_path: Path) -> None:
    with overlapscope.record(tmp_path / "x.json", plain_steps=0):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))])
        optimizer.step()
        gone = weakref.ref(optimizer)
        # At once, as alone, and with it the memory of its parameters.
        del optimizer
        assert gone() is None


def test_steps_of_a_watched_program_are_those_of_its_first_optimizer_on_any_thread(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        f"{HEAD}from overlapscope.recorder.automatic_steps import ProgramSteps\n"
        "steps = ProgramSteps(lambda: None)\nsteps.start()\n"
        f"def work():\n{indent(GAN, '    ')}\n"
        "thread = threading.Thread(target=work)\nthread.start()\nthread.join()\nprint(steps.count)"
    )
    assert forked.run(["program.py"], tmp_path, unloads=False).stdout == "45\n"
