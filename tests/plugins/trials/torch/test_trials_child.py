"""Tests of a run of `overlapscope try` from inside:

The program behaves as usual, with changes, and reports its steps.
"""

from __future__ import annotations

import gc
import math
import subprocess
import textwrap
from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.plugins.trials import fingerprint
from overlapscope.plugins.trials.changes import CHANGES, Notes, make
from overlapscope.plugins.trials.observed import tensors, with_tensors
from overlapscope.plugins.trials.processes import environment
from overlapscope.plugins.trials.protocol import EndedRun, Facts, RankOutcome, RankResults, Setting, Steps, Task
from overlapscope.plugins.trials.sameness import distance
from tests.support import forked

MODEL = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 24
    def __getitem__(self, index):
        return torch.sin(torch.arange(8.) * index), torch.tensor(index % 3)

model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=float(os.environ.get("RATE", 0.01)))

def step(x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
"""
TRAIN = (
    MODEL
    + """
loader = DataLoader(Numbers(), batch_size=4, shuffle=True)
for epoch in range(3):
    for x, y in loader:
        loss = step(x, y)
print("came to its end")
"""
)
"""18 steps, of which 12 can be timed after a warm-up of 5."""

INFERENCE = """
import overlapscope, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
for _ in range(100):
    with torch.inference_mode():
        {"out": model(torch.ones(3, 8))}
    overlapscope.step()
"""

UNMARKED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2, bias=False)
        nn.init.ones_(self.inner.weight)
    def forward(self, x):
        return self.inner(x) + 0

def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(4)).sum().backward()
    optimizer.step()

model = Model()
with torch.no_grad():
    for x in torch.utils.data.DataLoader(torch.arange(100.)[:, None].expand(100, 4)):
        model(x)
print("came to its end")
"""


def task(directory: Path, **options: Any) -> Task:
    return Task(directory=str(directory), **{"warmup_steps": 3, "steps": 10, **options})


def run(text: str, directory: Path, /, *, rate: str = "0.01", **options: Any) -> subprocess.CompletedProcess[str]:
    script = directory / "train.py"
    script.write_text(textwrap.dedent(text))
    result = environment(task(directory, **options))
    variables = result | {"RATE": rate, "OMP_NUM_THREADS": "1"}
    return forked.run([script], directory, environment=variables, unloads=False)


def outcome(directory: Path, rank: int = 0) -> RankOutcome:
    return msgspec.json.decode((directory / f"rank{rank}.json").read_bytes(), type=RankOutcome)


def outcome_of(text: str, directory: Path, /, **options: Any) -> RankOutcome:
    """Return the outcome of a program that ends once all its steps are made."""
    done = run(text, directory, **options)
    assert (done.returncode, done.stderr) == (0, "")
    assert "came to its end" not in done.stdout
    return outcome(directory)


def results(text: str, directory: Path, /, **options: Any) -> RankResults:
    computed = outcome_of(text, directory, **options).results
    assert computed is not None
    return computed


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> RankOutcome:
    return outcome_of(TRAIN, tmp_path_factory.mktemp("unchanged"))


class TestSteps:
    def test_are_timed_behind_the_warmup_and_the_program_ends_then(self, unchanged: RankOutcome) -> None:
        assert unchanged.complete
        assert unchanged.all_steps == 14
        assert len(unchanged.host_ns) == 10
        assert min(unchanged.host_ns) > 0
        assert (unchanged.device_ns, unchanged.rank, unchanged.ranks) == ((), 0, 1)

    def test_fewer_than_needed_are_reported_when_the_program_ends(self, tmp_path: Path) -> None:
        done = run(TRAIN, tmp_path, steps=100)
        assert done.stdout == "came to its end\n"
        few = outcome(tmp_path)
        assert (few.complete, few.all_steps, len(few.host_ns)) == (False, 18, 15)

    def test_in_which_torch_compiles_are_named(self, tmp_path: Path) -> None:
        # The module is compiled for training in the first step, and for evaluation, without gradients, in the ninth.
        program = MODEL + (
            "fast = torch.compile(model, backend='eager')\n"
            "for number in range(100):\n"
            "    if number == 8:\n"
            "        with torch.no_grad():\n"
            "            model.eval(); fast(torch.ones(4, 8)); model.train()\n"
            "    optimizer.zero_grad()\n"
            "    fast(torch.ones(4, 8)).sum().backward()\n"
            "    optimizer.step()\n"
        )
        assert outcome_of(program, tmp_path).compiled == (5,)

    def test_in_which_nothing_is_compiled_have_no_name(self, unchanged: RankOutcome) -> None:
        assert unchanged.compiled == ()

    def test_are_those_that_the_program_marks(self, tmp_path: Path) -> None:
        program = MODEL + (
            "import overlapscope\n"
            "for number in range(100):\n"
            "    if number % 3 == 0: step(torch.ones(4, 8), torch.zeros(4, dtype=torch.int64))\n"
            "    overlapscope.step()\n"
        )
        assert outcome_of(program, tmp_path).all_steps == 14

    def test_are_reported_by_a_recording_with_the_programs_own_profiler(self, tmp_path: Path) -> None:
        program = MODEL + (
            "import overlapscope\n"
            "with overlapscope.record('x.json', wait=100) as recording:\n"
            "    for number in range(100):\n"
            "        recording.step()\n"
        )
        assert run(program, tmp_path).returncode == 0
        assert (outcome(tmp_path).complete, len(outcome(tmp_path).host_ns)) == (True, 10)

    def test_each_of_several_ranks_reports_them(self, tmp_path: Path) -> None:
        program = f"""
        import os
        for rank in range(2):
            if os.fork() == 0:
                os.environ.update(RANK=str(rank), WORLD_SIZE="2")
                exec({TRAIN!r})
        for rank in range(2):
            os.wait()
        """
        assert run(program, tmp_path).returncode == 0
        outcomes = [outcome(tmp_path, rank) for rank in range(2)]
        assert [(outcome.rank, outcome.ranks, outcome.complete) for outcome in outcomes] == [(0, 2, True), (1, 2, True)]
        assert len(list(tmp_path.glob("rank*"))) == 2

    def test_of_a_program_that_marks_none_are_the_calls_of_its_model_from_the_first_on(self, tmp_path: Path) -> None:
        seen = outcome_of(UNMARKED, tmp_path, survey=True)
        assert seen.steps_by == Steps(kind="FORWARD", name="Model.forward", each=1, label="calls of Model.forward")
        assert seen.facts is not None
        assert [module.name for module in seen.facts.modules] == ["Model"]
        assert [loader.num_workers for loader in seen.facts.loaders] == [0]
        computed = []
        for changes in ([], [Setting("workers", "2")]):
            place = tmp_path / str(len(changes))
            place.mkdir()
            run = outcome_of(UNMARKED, place, changes=changes, steps_by=seen.steps_by)
            assert (run.all_steps, len(run.host_ns)) == (14, 10)
            computed.append(run.results)
        assert computed[0] is not None and computed[0] == computed[1]
        # The output of the whole model, in the 13th step.
        assert computed[0].sketches[0].norm == pytest.approx(4 * 12 * math.sqrt(2))

    def test_are_calls_of_backward_in_a_program_that_updates_its_parameters_by_hand(self, tmp_path: Path) -> None:
        program = UNMARKED.partition("with torch.no_grad")[0] + (
            "model = Model()\n"
            "for number in range(60):\n"
            "    model(torch.ones(4)).sum().backward()\n"
            "    model.zero_grad()\n"
        )
        seen = outcome_of(program, tmp_path, survey=True)
        assert seen.steps_by is not None and seen.steps_by.kind == "BACKWARD"
        assert seen.complete
        place = tmp_path / "timed"
        place.mkdir()
        assert outcome_of(program, place, steps_by=seen.steps_by).complete

    def test_are_none_that_workers_make_as_they_prepare_batches(self, tmp_path: Path) -> None:
        program = UNMARKED.partition("with torch.no_grad")[0] + (
            "import time\n"
            "class Scaled(nn.Module):\n"
            "    def forward(self, x): return 2 * x\n"
            "class Images(torch.utils.data.Dataset):\n"
            "    scale = Scaled()\n"
            "    def __len__(self): return 800\n"
            "    def __getitem__(self, index): return self.scale(torch.ones(4))\n"
            "for x in torch.utils.data.DataLoader(Images(), batch_size=16, num_workers=2):\n"
            "    model(x); time.sleep(0.02)\n"
        )
        seen = outcome_of(program, tmp_path, survey=True)
        assert seen.steps_by == Steps(kind="FORWARD", name="Model.forward", each=1, label="calls of Model.forward")

    def test_of_an_optimizer_come_before_those_of_the_model_that_it_trains(self, tmp_path: Path) -> None:
        model = UNMARKED.partition("with torch.no_grad")[0]
        program = model + (
            "optimizer = torch.optim.SGD(model.parameters())\n"
            "for number in range(40):\n"
            "    if number > 20: step(model, optimizer)\n"
            "    else: model(torch.ones(4))\n"
        )
        seen = outcome_of(program, tmp_path, survey=True)
        assert (seen.steps_by, seen.all_steps) == (None, 14)


class TestPrograms:
    """They end as they would."""

    def test_one_that_fails_says_why(self, tmp_path: Path) -> None:
        done = run(TRAIN + "raise SystemError('no more')\n", tmp_path, steps=100)
        assert done.returncode == 1
        assert "SystemError: no more" in done.stderr
        assert not outcome(tmp_path).complete

    def test_one_without_steps_says_so(self, tmp_path: Path) -> None:
        # In a session of its own, as `overlapscope try` starts it.
        run("import os, subprocess, sys, torch\nos.setsid()\nsubprocess.run([sys.executable, '-c', '1'])", tmp_path)
        assert (outcome(tmp_path).all_steps, outcome(tmp_path).complete) == (0, False)

    def test_helper_processes_print_nothing(self, tmp_path: Path) -> None:
        run("import torch\nfor x in torch.utils.data.DataLoader(range(8), num_workers=1): pass", tmp_path)
        assert list(tmp_path.glob("rank*")) == []

    def test_one_that_is_recorded_goes_on_with_its_changes(self, tmp_path: Path) -> None:
        program = TRAIN.replace('print("', 'print(loader.num_workers, "')
        done = run(program, tmp_path, steps=None, changes=[Setting("workers", "1")])
        assert done.stdout == "1 came to its end\n"
        assert list(tmp_path.glob("rank*")) == []

    def test_one_whose_loader_is_forked_once_steps_are_timed_and_looked_at(self, tmp_path: Path) -> None:
        program = TRAIN.replace(
            "for epoch in range(3):",
            "for epoch in range(20):\n"
            "    for x, y in DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context='fork'):\n"
            "        assert torch.isfinite(model(x)).all()",
        )
        assert outcome_of(program, tmp_path, survey=True, warmup_steps=3, steps=20).facts is not None

    def test_one_that_ends_for_no_exception_is_ended_in_its_next_step(self, tmp_path: Path) -> None:
        program = MODEL + (
            "for number in range(100):\n"
            "    try: step(torch.ones(4, 8), torch.zeros(4, dtype=torch.int64))\n"
            "    except BaseException: pass\n"
            "    print(number, flush=True)\n"
        )
        done = run(program, tmp_path)
        assert (done.returncode, done.stdout.split()) == (0, [str(number) for number in range(14)])

    def test_one_that_forks_frees_none_of_the_marks_events_in_the_child(self, tmp_path: Path) -> None:
        """CUDA would end the child by SIGABRT."""
        program = """
        import os, sys
        from overlapscope.recorder.step_times import StepTimer

        class Event:
            def __del__(self): os.write(1, b"freed")

        timer = StepTimer(9)
        timer._marks.append((0, Event()))
        timer._marks.append((1, Event()))
        if os.fork() == 0:
            os.write(1, f"{timer.timed} in the child, ".encode())
            del timer
            sys.exit()
        os.wait()
        os.write(1, f"{timer.timed} in the parent".encode())
        os._exit(0)
        """
        assert run(program, tmp_path).stdout == "0 in the child, 1 in the parent"


class TestResults:
    def test_of_two_unchanged_runs_are_the_same(self, unchanged: RankOutcome, tmp_path: Path) -> None:
        computed = results(TRAIN, tmp_path)
        assert computed == unchanged.results
        assert computed.loss is not None
        names = ["parameter 0", "exp_avg 0", "exp_avg_sq 0", "step 0", "parameter 1"]
        assert [sketch.name for sketch in computed.sketches][:5] == [f"optimizer 0 {name}" for name in names]

    def test_differ_by_rounding_less_than_by_another_learning_rate(
        self, unchanged: RankOutcome, tmp_path: Path
    ) -> None:
        assert unchanged.results is not None
        (tmp_path / "rounded").mkdir()
        apart = [
            max(map(distance, computed.sketches, unchanged.results.sketches))
            for computed in (results(TRAIN, tmp_path / "rounded", rounded=True), results(TRAIN, tmp_path, rate="0.011"))
        ]
        assert 0 < apart[0] < 1e-3 < apart[1]

    def test_of_a_program_without_an_optimizer_differ_by_rounding_too(self, tmp_path: Path) -> None:
        apart = []
        for rounded in (False, True):
            (tmp_path / str(rounded)).mkdir()
            apart.append(results(INFERENCE, tmp_path / str(rounded), rounded=rounded))
        assert 0 < max(map(distance, apart[0].sketches, apart[1].sketches)) < 1e-3

    def test_of_a_program_without_an_optimizer_are_its_output(self, tmp_path: Path) -> None:
        computed = results(INFERENCE, tmp_path)
        assert [sketch.name for sketch in computed.sketches] == ["output ()"]
        assert len(computed.digest) == 64
        assert computed.loss is None


# -- changes --------------------------------------------------------------------------------------


class TestWorkers:
    def test_load_the_same_batches(self, unchanged: RankOutcome, tmp_path: Path) -> None:
        program = TRAIN.replace("return torch.sin", "assert torch.utils.data.get_worker_info(); return torch.sin")
        changed = outcome_of(program, tmp_path, changes=[Setting("workers", "2")])
        assert changed.results == unchanged.results
        assert changed.effects == {"workers": 1}

    def test_load_the_same_batches_where_the_dataset_draws_random_numbers(self, tmp_path: Path) -> None:
        drawn = "return random.random() * torch.rand(8) + np.random.random() * torch.arange(8.)"
        program = "import random; import numpy as np\n" + TRAIN.replace(
            "return torch.sin(torch.arange(8.) * index)", drawn
        )
        assert drawn in program
        computed = []
        for number, changes in enumerate([[], [Setting("workers", "1")], [Setting("workers", "2")]]):
            (tmp_path / str(number)).mkdir()
            computed.append(results(program, tmp_path / str(number), changes=changes))
        assert computed[0] == computed[1] == computed[2]

    def test_in_which_a_dataset_cannot_live_end_the_program_with_its_own_error(self, tmp_path: Path) -> None:
        check = "assert not torch.utils.data.get_worker_info(), 'not in a worker'"
        program = TRAIN.replace("return torch.sin", f"{check}; return torch.sin")
        done = run(program, tmp_path, changes=[Setting("workers", "2")])
        ended = EndedRun((), done.returncode, done.stdout + done.stderr, wall_s=1.0)
        assert ended.how == "It exited with code 1: AssertionError: not in a worker"

    def test_draw_what_a_program_draws_whose_workers_persist_already(self) -> None:
        def drawn(changes: list[Setting]) -> torch.Tensor:
            torch.manual_seed(0)
            undo = make(changes, Notes())
            data = torch.utils.data.TensorDataset(torch.ones(2))
            loader = torch.utils.data.DataLoader(data, num_workers=1, persistent_workers=True)
            for _ in range(2):
                list(loader)
            undo()
            return torch.rand(1)

        assert drawn([]) == drawn([Setting("workers", "2")])

    def test_replace_none_where_a_library_asks_for_none(self) -> None:
        notes = Notes()
        undo = make([Setting("workers", "1")], notes)
        data = torch.utils.data.TensorDataset(torch.ones(4))
        loaders = [torch.utils.data.DataLoader(data, num_workers=number) for number in (0, 2)]
        undo()
        loaders.append(torch.utils.data.DataLoader(data))
        assert [loader.num_workers for loader in loaders] == [1, 2, 0]
        assert [loader.persistent_workers for loader in loaders] == [True, False, False]
        assert notes.effects == {"workers": 1}

    def test_do_not_share_an_iterable_dataset(self) -> None:
        class Endless(torch.utils.data.IterableDataset[int]):
            def __iter__(self) -> Iterator[int]:
                return iter(range(8))

        notes = Notes()
        undo = make([Setting("workers", "2")], notes)
        loader = torch.utils.data.DataLoader(Endless())
        undo()
        assert loader.num_workers == 0
        assert "iterable" in notes.refused["workers"]


def test_a_fused_optimizer_computes_the_same_but_for_rounding(unchanged: RankOutcome, tmp_path: Path) -> None:
    changed = outcome_of(TRAIN, tmp_path, changes=[Setting("fused")])
    assert changed.effects == {"fused": 1}
    assert changed.results is not None
    assert unchanged.results is not None
    assert max(map(distance, changed.results.sketches, unchanged.results.sketches)) < 1e-4


def test_an_optimizer_whose_implementation_the_program_chose_is_left_alone() -> None:
    notes = Notes()
    undo = make([Setting("fused")], notes)
    optimizer = torch.optim.Adam([torch.ones(3, requires_grad=True)], foreach=True)
    undo()
    assert not optimizer.defaults["fused"]
    assert notes.refused == {"fused": "The program asks for another implementation of the optimizer."}


TENSORS = (
    MODEL.replace("class Numbers", "class Unused")
    + """
import gc
from torch.utils.data import TensorDataset
torch.set_num_threads(3)
optimizer = torch.optim.RMSprop(model.parameters())
data = TensorDataset(torch.arange(192.).view(24, 8).sin(), torch.arange(24) % 3)
loader = DataLoader(data, batch_size=4, shuffle=True)
for epoch in range(3):
    for x, y in loader:
        step(x, y)
        gc.collect()
"""
)
HOST = (Setting("gc"), Setting("threads", "1"))


def test_changes_of_the_host_are_made_and_compute_the_same(tmp_path: Path) -> None:
    unchanged = outcome_of(TENSORS, tmp_path)
    assert unchanged.results is not None
    for change in HOST:
        changed = outcome_of(TENSORS, tmp_path, changes=[change])
        assert changed.effects[change.change] > 0 and not changed.refused
        assert changed.results is not None
        if change.change == "gc":
            assert changed.results == unchanged.results
        assert max(map(distance, changed.results.sketches, unchanged.results.sketches)) < 1e-4


def test_facts_say_where_changes_of_the_host_can_gain(tmp_path: Path) -> None:
    facts = outcome_of(TENSORS, tmp_path, survey=True).facts
    assert facts is not None
    lines = TENSORS.splitlines()
    assert 0 < facts.gc_pct < 100
    assert facts.threads == 3 and facts.threads_site is not None
    assert "set_num_threads" in lines[facts.threads_site.number - 1]


def test_objects_are_frozen_after_the_first_step_and_unfrozen_when_it_is_undone() -> None:
    notes = Notes()
    gc.unfreeze()
    undo = make([Setting("gc")], notes)
    assert gc.get_freeze_count() == 0
    notes.step()
    notes.step()
    assert gc.get_freeze_count() > 1000 and notes.effects["gc"] == 1
    undo()
    assert gc.get_freeze_count() == 0 and not notes.after_step


def test_threads_are_limited_whatever_the_program_asks_for() -> None:
    before = torch.get_num_threads()
    undo = make([Setting("threads", "1")], Notes())
    torch.set_num_threads(8)
    assert torch.get_num_threads() == 1
    undo()
    assert torch.get_num_threads() == before


def test_changes_that_do_not_fit_leave_the_program_as_it_is(unchanged: RankOutcome, tmp_path: Path) -> None:
    """On a CPU none of these does."""
    changes = [Setting(change) for change in ("pin", "non-blocking", "prefetch")]
    done = run(TRAIN, tmp_path, changes=[*changes, Setting("graph", "fuse")])
    assert done.returncode == 0
    assert outcome(tmp_path).results == unchanged.results
    assert outcome(tmp_path).refused == {
        "prefetch": "The program uploads no tensor of its batches as the loader made it.",
        "graph": "The module's parameters are not on a GPU.",
    }


def test_every_change_can_be_undone() -> None:
    before = {name: vars(owner).get(name) for owner, name in PATCHED}
    undo = make(
        [Setting(change, {"workers": "2", "graph": "compile", "threads": "1"}.get(change, "")) for change in CHANGES],
        Notes(),
    )
    assert {name: vars(owner).get(name) for owner, name in PATCHED} != before
    undo()
    assert {name: vars(owner).get(name) for owner, name in PATCHED} == before


PATCHED: list[tuple[Any, str]] = [
    *((torch.Tensor, name) for name in ("to", "cuda", "copy_", "pin_memory")),
    *((torch.utils.data.DataLoader, name) for name in ("__init__", "__iter__")),
    (torch.optim.AdamW, "step"),
    (torch, "set_num_threads"),
]


# -- behavior of a program ----------------------------------------------------------------------------


def test_facts_name_the_lines_of_the_program(tmp_path: Path) -> None:
    facts = outcome_of(TRAIN, tmp_path, survey=True).facts
    assert facts is not None
    assert not facts.cuda
    assert facts.cpus >= 1
    lines = TRAIN.splitlines()

    def line(text: str) -> int:
        return next(number for number, line in enumerate(lines, 1) if text in line)

    (loader,), (optimizer,), (module,) = facts.loaders, facts.optimizers, facts.modules
    assert (loader.site.number, loader.loop and loader.loop.number) == (line("loader ="), line("for x, y in"))
    assert (loader.num_workers, loader.on_gpu) == (0, False)
    assert (optimizer.site.number, optimizer.name, optimizer.takes_fused) == (line("optimizer ="), "AdamW", True)
    assert (module.site.number, module.name, module.compiled) == (line("model(x)"), "Sequential", False)
    sites = [loader.site, optimizer.site, module.site]
    assert {(site.file, site.library) for site in sites} == {(str(tmp_path / "train.py"), "")}


def test_facts_name_the_library_that_does_it(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "trainer"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import torch\ndef make(data): return torch.utils.data.DataLoader(data)\n")
    program = TRAIN.replace("DataLoader(Numbers(), batch_size=4, shuffle=True)", "trainer.make(Numbers())")
    facts = outcome_of(
        f"import sys; sys.path.append({str(package.parent)!r}); import trainer\n" + program, tmp_path, survey=True
    )
    assert isinstance(facts.facts, Facts)
    assert [(loader.site.file, loader.site.library) for loader in facts.facts.loaders] == [
        (str(tmp_path / "train.py"), "trainer")
    ]


# -- how far apart results are ------------------------------------------------------------------------


@given(size=st.integers(1, 5000), share=st.floats(1e-6, 1.0), seed=st.integers(0, 1000))
def test_a_distance_is_estimated_within_a_factor_of_two(size: int, share: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    tensor = torch.randn(size, generator=random, dtype=torch.float64)
    other = tensor + share * torch.randn(size, generator=random, dtype=torch.float64)
    true = float((tensor - other).norm() / max(tensor.norm(), other.norm()))
    estimated = distance(fingerprint.sketch("", tensor), fingerprint.sketch("", other))
    assert true / 2 < estimated < 2 * true


def test_a_sketch_of_what_is_not_a_number_is_finite() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    sketch = fingerprint.sketch("", odd)
    assert all(map(math.isfinite, (sketch.norm, *sketch.sums)))
    assert distance(sketch, fingerprint.sketch("", odd.clone())) == 0
    assert distance(sketch, fingerprint.sketch("", odd.nan_to_num())) > 0.1


@pytest.mark.parametrize(
    "parameter",
    [
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3, 3).to_sparse(),
        torch.ones(3, device="meta"),
        torch.ones(4, 3).t(),
        torch.ones(()),
        torch.ones(0),
    ],
    ids=["bfloat16", "complex", "sparse", "meta", "not contiguous", "scalar", "empty"],
)
def test_parameters_of_all_kinds_have_results(parameter: torch.Tensor) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(parameter)])
    computed = fingerprint.optimizer_results([optimizer])
    assert computed is not None
    assert len(computed.digest) == 64


@dataclass
class BatchWithText:
    x: torch.Tensor
    text: str


class BatchPair(NamedTuple):
    first: object
    second: object


def test_tensors_are_found_and_replaced_in_structures() -> None:
    vector, two = torch.ones(1), torch.zeros(1)
    batch = [BatchPair(vector, {"y": two}), UserDict(x=vector), BatchWithText(two, "text"), "text", 3]
    assert [path for path, _ in tensors(batch)] == [(0, 0), (0, 1, "y"), (1, "x"), (2, "x")]
    again = with_tensors(batch, lambda path, tensor: tensor + 1)
    assert [float(tensor) for _, tensor in tensors(again)] == [2, 1, 2, 1]
    assert [type(part) for part in again] == [type(part) for part in batch]
    assert [float(tensor) for _, tensor in tensors(batch)] == [1, 0, 1, 0]
    assert with_tensors(batch, lambda path, tensor: tensor) is batch
