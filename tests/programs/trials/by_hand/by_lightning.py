"""`by_lightning` with edits. Lightning does not wait for uploads anyway."""

from __future__ import annotations

import lightning
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.programs.trials.by_hand.edits import fused, loading
from tests.programs.trials.models import convolutions
from tests.programs.trials.options import Clock, options
from tests.programs.trials.pictures import Pictures

o = options(steps=300, edits=("workers", "pin", "fused"))
clock = Clock(o)
BATCH = o.size(32, 2)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = convolutions(o)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, labels = batch
        return functional.cross_entropy(self.model(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3, **fused(o))

    def on_train_batch_end(self, *_: object) -> None:
        clock.step()


loader = DataLoader(Pictures(o.steps * BATCH, side=o.size(160, 16)), batch_size=BATCH, shuffle=True, **loading(o))
classifier = Classifier()
trainer = lightning.Trainer(
    max_steps=o.steps,
    accelerator="gpu" if o.cuda else "cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(classifier, loader)
print(f"{sum(float(weight.detach().sum()) for weight in classifier.parameters()):.4f}")
