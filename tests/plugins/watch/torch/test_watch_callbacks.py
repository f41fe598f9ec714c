"""Tests that training with the real framework is watched, and that its loggers get the figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support import forked

Store = pytest.importorskip("overlapscope.plugins.history.store").Store

pytest.importorskip("torch", reason="trains with torch")

PATIENT = """
import torch
from overlapscope.plugins.watch import continuous
continuous.GRACE_S, continuous.MOST_OF_TIME = 200, 1e9
inputs = torch.randn(200, 8)
asked = dict(every="0.01s", history="history.sqlite", job="train")
"""
LIGHTNING = """
import os
import lightning.pytorch as lightning
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger
from overlapscope.plugins.watch.callbacks.lightning import Watcher

class Broken(Logger):
    name, version, reached = "broken", 0, 0

    @property
    def experiment(self):
        # Lightning itself asks for it twice first.
        self.reached += 1
        if self.reached > 2:
            raise RuntimeError("no server")

    def log_metrics(self, metrics, step=None): pass

    def log_hyperparams(self, params, *args, **kwargs): pass

other = CSVLogger("csv")
# Two programs, since Lightning takes longer to import than both to run.
if os.fork():
    assert os.wait()[1] == 0
else:
    os.mkdir("broken"); os.chdir("broken")
    os.dup2(os.open("said", os.O_CREAT | os.O_WRONLY), 2)
    other = Broken()
quiet = dict.fromkeys(["enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
trainer = lightning.Trainer(max_steps=120, accelerator="cpu", limit_val_batches=0, callbacks=[Watcher(**asked)],
    logger=[TensorBoardLogger("tb"), other], **quiet)
trainer.fit(BoringModel())
"""
TRANSFORMERS = """
import transformers
from overlapscope.plugins.watch.callbacks.transformers import Watcher

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, inputs, labels):
        return {"loss": torch.nn.functional.mse_loss(self.layer(inputs), labels)}

transformers.Trainer(
    model=Model(),
    args=transformers.TrainingArguments(output_dir="out", per_device_train_batch_size=4, num_train_epochs=3,
        report_to=["tensorboard"], save_strategy="no", disable_tqdm=True),
    train_dataset=[{"inputs": one, "labels": one.sum().reshape(1)} for one in inputs],
    callbacks=[Watcher(**asked)],
).train()
"""


def train(code: str, folder: Path) -> None:
    (folder / "train.py").write_text(PATIENT + code)
    done = forked.run(["train.py"], folder, environment={"XDG_RUNTIME_DIR": str(folder)})
    assert done.returncode == 0, done.stderr
    assert "overlapscope" not in done.stderr
    with Store.open(folder / "history.sqlite", read_only=True) as history:
        assert {row.origin.job for row in history.rows()} == {"train"}


def tags(folder: Path) -> list[str]:
    [events] = {path.parent for path in folder.rglob("events.out.*")}
    return list(EventAccumulator(str(events)).Reload().Tags()["scalars"])


def test_the_loggers_of_a_lightning_trainer_get_the_figures_and_a_failing_one_stops_no_training(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch", reason="needs PyTorch Lightning")
    train(LIGHTNING, tmp_path)
    assert "overlap/host_step_ms" in tags(tmp_path / "tb")
    [metrics] = tmp_path.glob("csv/**/metrics.csv")
    assert "overlap/host_step_ms" in metrics.read_text()
    text = (tmp_path / "broken" / "said").read_text()
    assert "overlapscope: the training's own loggers get no figures: no server" in text
    assert (tmp_path / "broken" / "history.sqlite").exists()


def test_the_tools_that_a_transformers_trainer_reports_to_get_the_figures(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs Hugging Face Transformers")
    pytest.importorskip("accelerate", reason="its Trainer needs accelerate")
    train(TRANSFORMERS, tmp_path)
    assert "overlap/host_step_ms" in tags(tmp_path / "out" / "runs" / "overlapscope")


@pytest.mark.parametrize(("module", "package"), [("lightning", "lightning"), ("transformers", "transformers")])
def test_options_that_make_no_sense_are_refused_before_the_training(module: str, package: str) -> None:
    from overlapscope.base.registry import load
    from overlapscope.errors import UsageError

    pytest.importorskip(package)
    with pytest.raises(UsageError):
        load(f"overlapscope.plugins.watch.callbacks.{module}:Watcher")(every="often")
