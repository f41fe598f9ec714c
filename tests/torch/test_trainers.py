"""Recordings around trainings of a few steps by the real frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import overlapscope as ov
from overlapscope.recorder.recording import current
from tests.support import forked

torch = pytest.importorskip("torch", reason="trains with torch")

STEPS = 24


def step_names(path: Path) -> list[str]:
    """Return the steps on the host, in order."""
    annotations = ov.load(path).annotations
    names = [annotations.name(row) for row in range(len(annotations))]
    return [name for name in names if name.startswith("ProfilerStep#")]


@pytest.fixture
def data() -> Any:
    inputs = torch.randn(STEPS * 4, 8)
    return torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


class TestLightning:
    @pytest.fixture
    def lightning(self) -> Any:
        return pytest.importorskip("lightning.pytorch", reason="needs PyTorch Lightning")

    @pytest.fixture
    def model(self, lightning: Any) -> Any:
        class LightningRegression(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(8, 1)
                self.fails_at = -1

            def training_step(self, batch: Any, index: int) -> Any:
                if index == self.fails_at:
                    raise ZeroDivisionError("the program's own")
                inputs, targets = batch
                return torch.nn.functional.mse_loss(self.layer(inputs), targets)

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.01)

        return LightningRegression()

    def fit(self, lightning: Any, model: Any, data: Any, directory: Path, **options: str | int) -> None:
        trainer = lightning.Trainer(
            max_epochs=1,
            default_root_dir=directory,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **options,
        )
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))

    def test_each_optimizer_step_is_a_step(self, lightning: Any, model: Any, data: Any, tmp_path: Path) -> None:
        with ov.record(tmp_path / "x.trace.json.gz", wait=2, warmup=1, active=2, plain_steps=0) as recording:
            self.fit(lightning, model, data, tmp_path)
        assert step_names(recording.path) == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
        assert recording.step_source == "calls of SGD.step"

    @pytest.mark.parametrize("plain_steps", [0, 10])
    def test_lightning_s_own_profiler_takes_its_place(
        self, plain_steps: int, lightning: Any, model: Any, data: Any, tmp_path: Path
    ) -> None:
        """Two at once would crash the process."""
        with ov.record(tmp_path / "x.trace.json.gz", plain_steps=plain_steps) as recording:
            self.fit(lightning, model, data, tmp_path, profiler="pytorch")
        assert recording.notes == ("The program's own torch.profiler was used, with its schedule.",)
        assert step_names(recording.path) == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]

    def test_a_training_that_fails_leaves_its_trace(
        self, lightning: Any, model: Any, data: Any, tmp_path: Path
    ) -> None:
        model.fails_at = 12
        with (
            pytest.raises(ZeroDivisionError),
            ov.record(tmp_path / "x.trace.json.gz", plain_steps=0) as recording,
        ):
            self.fit(lightning, model, data, tmp_path)
        assert step_names(recording.path)
        assert current() is None

    def test_ranks_that_the_trainer_starts_as_scripts_write_a_file_each(self, lightning: Any, tmp_path: Path) -> None:
        program = tmp_path / "program.py"
        program.write_text(
            "import torch, lightning.pytorch as lightning, overlapscope\n"
            "from lightning.pytorch.demos.boring_classes import BoringModel\n"
            "quiet = dict.fromkeys(['logger', 'enable_checkpointing', 'enable_progress_bar'], False)\n"
            "trainer = lightning.Trainer(max_steps=16, accelerator='cpu', devices=2, strategy='ddp',\n"
            "    limit_val_batches=0, **quiet)\n"
            "with overlapscope.record('x.trace.json.gz', active=3, plain_steps=0): trainer.fit(BoringModel())\n"
        )
        done = forked.run([program], tmp_path, unloads=False)
        assert done.returncode == 0, done.stderr
        self.check_ranks(tmp_path)

    def check_ranks(self, directory: Path) -> None:
        assert not (directory / "x.trace.json.gz").exists()
        written = sorted((directory / "x.traces").iterdir())
        assert [file.name for file in written] == ["rank0.trace.json.gz", "rank1.trace.json.gz"]
        assert [len(step_names(file)) for file in written] == [4, 4]


class TestTransformers:
    @pytest.fixture
    def train(self, data: Any, tmp_path: Path) -> Any:
        transformers = pytest.importorskip("transformers", reason="needs Hugging Face Transformers")
        pytest.importorskip("accelerate", reason="its Trainer needs accelerate")

        class RegressionWithLoss(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
            def __init__(self, fails_at: int) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(8, 1)
                self.calls, self.fails_at = 0, fails_at

            def forward(self, inputs: Any, labels: Any) -> dict[str, Any]:
                self.calls += 1
                if self.calls > self.fails_at:
                    raise ZeroDivisionError("the program's own")
                return {"loss": torch.nn.functional.mse_loss(self.layer(inputs), labels)}

        def train(fails_at: int = STEPS) -> None:
            arguments = transformers.TrainingArguments(
                output_dir=str(tmp_path),
                per_device_train_batch_size=4,
                num_train_epochs=1,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
            )
            trainer = transformers.Trainer(
                model=RegressionWithLoss(fails_at),
                args=arguments,
                train_dataset=[{"inputs": inputs, "labels": labels} for inputs, labels in data],
            )
            trainer.train()

        return train

    def test_each_optimizer_step_is_a_step(self, train: Any, tmp_path: Path) -> None:
        with ov.record(tmp_path / "x.trace.json.gz", warmup=1, active=2, plain_steps=0) as recording:
            train()
        assert step_names(recording.path) == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]

    def test_a_training_that_fails_leaves_its_trace(self, train: Any, tmp_path: Path) -> None:
        with (
            pytest.raises(ZeroDivisionError),
            ov.record(tmp_path / "x.trace.json.gz", plain_steps=0) as recording,
        ):
            train(fails_at=12)
        assert step_names(recording.path)
