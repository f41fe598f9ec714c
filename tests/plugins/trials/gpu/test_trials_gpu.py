"""Changes that `overlapscope try` makes, on a GPU: the program computes the same with each, without data races."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, Dataset, TensorDataset

from overlapscope.plugins.trials import fingerprint
from overlapscope.plugins.trials.changes import Notes, make
from overlapscope.plugins.trials.processes import environment
from overlapscope.plugins.trials.protocol import Facts, RankOutcome, RankResults, Setting, Task
from overlapscope.plugins.trials.sameness import distance
from overlapscope.plugins.trials.survey import Survey

hazards = pytest.importorskip("overlapscope.plugins.hazards.checker")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STEPS = 8
Train = Callable[[Callable[[], None]], torch.optim.Optimizer]
"""Function that makes steps, calls its argument after each, and returns its optimizer."""


class NestedSamples(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return STEPS * 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((64,), index / 100), "also": [torch.tensor(index % 8)], "name": str(index)}


def network() -> nn.Sequential:
    # A bias before a norm has a gradient of rounding errors only.
    return nn.Sequential(nn.Linear(64, 128, bias=False), nn.BatchNorm1d(128), nn.Dropout(0.1), nn.Linear(128, 8)).cuda()


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def from_loader(stepped: Callable[[], None]) -> torch.optim.Optimizer:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for batch in DataLoader(NestedSamples(), batch_size=16, shuffle=True):
        learn(model, optimizer, batch["x"].to("cuda"), batch["also"][0].cuda())
        assert len(batch["name"]) == 16
        stepped()
    return optimizer


def from_host_tensors(stepped: Callable[[], None]) -> torch.optim.Optimizer:
    """Run uploads of every form, from memory that is overwritten at once."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, kept = torch.zeros(16, 64, dtype=torch.float64), torch.zeros(16, device="cuda", dtype=torch.int64)
    for number in range(STEPS):
        x.copy_(torch.randn(16, 64))
        on_gpu = x.to(torch.device("cuda"), torch.float32)
        scale = torch.tensor(1.0 + number)
        kept.copy_(torch.randint(8, (16,)))
        learn(model, optimizer, on_gpu / scale.cuda(non_blocking=False), kept)
        scale.zero_()
        stepped()
    return optimizer


def run(train: Train, *changes: Setting) -> tuple[RankResults, Notes]:
    random.seed(0)
    torch.manual_seed(0)
    notes = Notes()
    undo = make(changes, notes)
    try:
        optimizer = train(notes.step)
        torch.cuda.synchronize()
    finally:
        undo()
    results = fingerprint.optimizer_results([optimizer])
    assert results is not None
    return results, notes


def races(train: Train, *changes: Setting) -> list[str]:
    checker = hazards.HazardChecker()
    checker.start()
    try:
        run(train, *changes)
    finally:
        checker.stop()
    return [hazards.describe(hazard) for hazard in checker.hazards]


def apart(first: RankResults, other: RankResults) -> float:
    return max(map(distance, first.sketches, other.sketches))


UPLOADS = [
    (from_loader, [Setting("pin")]),
    (from_loader, [Setting("prefetch")]),
    (from_loader, [Setting("pin"), Setting("non-blocking")]),
    (from_loader, [Setting("workers", "1"), Setting("pin"), Setting("non-blocking"), Setting("prefetch")]),
    (from_host_tensors, [Setting("pin")]),
    (from_host_tensors, [Setting("pin"), Setting("non-blocking")]),
]


@pytest.mark.parametrize(("train", "changes"), UPLOADS)
class TestUploads:
    def test_compute_the_same(self, train: Train, changes: list[Setting]) -> None:
        unchanged, _ = run(train)
        changed, notes = run(train, *changes)
        assert changed.digest == unchanged.digest
        assert set(notes.effects) | set(notes.refused) >= {changes[-1].change}
        assert notes.refused == {}

    def test_bring_no_data_race(self, train: Train, changes: list[Setting]) -> None:
        assert races(train, *changes) == []


def test_a_pinned_source_is_uploaded_without_blocking() -> None:
    survey = Survey()

    def train(stepped: Callable[[], None]) -> torch.optim.Optimizer:
        def stepped_seen() -> None:
            survey.step()
            stepped()

        return from_loader(stepped_seen)

    try:
        run(train, Setting("pin"), Setting("non-blocking"))
    finally:
        survey.end()
    uploads = survey.facts([]).uploads
    assert {(upload.pinned, upload.non_blocking) for upload in uploads if upload.from_loader} == {(True, True)}


def test_a_batch_is_on_the_gpu_where_the_program_uploads_it_and_nowhere_else() -> None:
    places = []

    def train(stepped: Callable[[], None]) -> torch.optim.Optimizer:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = TensorDataset(torch.randn(48, 64), torch.randint(8, (48,)), torch.arange(48))
        for x, y, number in DataLoader(data, batch_size=8):
            places.append((x.device.type, y.device.type, number.device.type))
            learn(model, optimizer, x.cuda(), y.cuda())
            stepped()
        return optimizer

    run(train, Setting("prefetch"))
    assert places == [("cpu",) * 3] * 2 + [("cuda", "cuda", "cpu")] * 4


def test_an_iterator_that_is_ahead_ends_breaks_and_fails_as_ever() -> None:
    undo = make([Setting("prefetch")], Notes())
    try:
        data = TensorDataset(torch.arange(40.0))
        loader = DataLoader(data, batch_size=8)

        def taken(most: int = 9) -> list[float]:
            values = []
            for (x,) in loader:
                values.append(x.cuda().sum().item())
                if len(values) == most:
                    break
            return values

        first = taken()
        assert [taken(), taken(4), taken()] == [first, first[:4], first]
        assert len(loader) == len(iter(loader)) == 5

        class Broken(Dataset[torch.Tensor]):
            def __len__(self) -> int:
                return 6

            def __getitem__(self, index: int) -> torch.Tensor:
                if index == 4:
                    raise OSError("no such picture")
                return torch.ones(1)

        batches = iter(DataLoader(Broken()))
        for _ in range(4):
            next(batches).cuda()
        with pytest.raises(OSError, match="no such picture"):
            next(batches)
    finally:
        undo()


# -- graphs ---------------------------------------------------------------------------------------


def from_tensors(
    stepped: Callable[[], None], sizes: Iterable[int] = (16,) * STEPS, make: Callable[[], nn.Module] = network
) -> torch.optim.Optimizer:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for size in sizes:
        learn(model, optimizer, torch.randn(size, 64).cuda(), torch.randint(8, (size,)).cuda())
        stepped()
    # RankResults are those of the norm's statistics, too.
    optimizer.add_param_group({"params": [buffer.float() for buffer in model.buffers()]})
    return optimizer


class Wrapped(nn.Module):
    """A module of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out


def of_other_shapes(stepped: Callable[[], None]) -> torch.optim.Optimizer:
    return from_tensors(stepped, (16, 16, 16, 16, 12, 16, 12, 16))


def of_a_class_of_its_own(stepped: Callable[[], None]) -> torch.optim.Optimizer:
    return from_tensors(stepped, make=Wrapped)


@pytest.mark.parametrize("train", [from_tensors, of_other_shapes, of_a_class_of_its_own])
@pytest.mark.parametrize("value", ["compile", "fuse"])
def test_a_module_in_cuda_graphs_computes_the_same_but_for_rounding(value: str, train: Train) -> None:
    unchanged, _ = run(train)
    torch._dynamo.reset()
    counters.clear()
    changed, notes = run(train, Setting("graph", value))
    assert (notes.effects, notes.refused) == ({"graph": 1}, {})
    assert counters["stats"]["unique_graphs"]
    assert apart(changed, unchanged) < 1e-3


def test_a_fused_optimizer_computes_the_same_but_for_rounding() -> None:
    unchanged, _ = run(from_host_tensors)
    changed, notes = run(from_host_tensors, Setting("fused"))
    assert notes.effects == {"fused": 1}
    assert apart(changed, unchanged) < 1e-2


# -- a process ------------------------------------------------------------------------------------

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(3200, 256), torch.randint(8, (3200,)))
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
total = 0
for x, y in DataLoader(data, batch_size=32):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.to("cuda")), y.cuda())
    loss.backward()
    optimizer.step()
    total += loss.item()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def started(command: list[str], task: Task) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[4])
    variables = os.environ | environment(task)
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], root])
    done = subprocess.run(
        [sys.executable, *command], env=variables, start_new_session=True, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_survey_tells_what_goes_to_the_gpu(script: Path, tmp_path: Path) -> None:
    started([str(script)], Task(directory=str(tmp_path), warmup_steps=10, steps=20, survey=True))
    outcome = msgspec.json.decode((tmp_path / "rank0.json").read_bytes(), type=RankOutcome)
    facts = outcome.facts
    assert isinstance(facts, Facts)
    assert facts.cuda
    assert facts.device_name
    assert {(upload.method, upload.site.number, upload.from_loader, upload.pinned) for upload in facts.uploads} == {
        ("to", 11, True, False),
        ("cuda", 11, True, False),
    }
    assert len(outcome.device_ns) == len(outcome.host_ns) == 20
    assert outcome.results is not None
    assert outcome.results.loss is not None


def test_a_recording_is_of_the_changed_program(script: Path, tmp_path: Path) -> None:
    changes = (Setting("pin"), Setting("non-blocking"), Setting("prefetch"))
    trace = tmp_path / "after.trace.json.gz"
    options = ["--check-hazards", "--stop-after-recording", "-o", str(trace)]
    done = started(["-m", "overlapscope", "run", *options, str(script)], Task(directory=str(tmp_path), changes=changes))
    assert "no data races found" in done.stderr
    assert trace.exists()
    assert list(tmp_path.glob("rank*")) == []
