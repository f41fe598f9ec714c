"""`trainer` with edits that Hugging Face's Trainer has options for. It pins batches and fuses its optimizer anyway."""

from __future__ import annotations

import tempfile

from transformers import Trainer, TrainingArguments

from tests.programs.trials.callbacks import Ticking
from tests.programs.trials.options import Clock, options
from tests.programs.trials.texts import Labelled, gpt2

o = options(steps=400, edits=("workers", "non-blocking", "graph"))
BATCH, WORDS, VOCABULARY = o.size(16, 2), o.size(384, 32), o.size(16384, 512)

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=o.steps,
        per_device_train_batch_size=BATCH,
        bf16=o.cuda,
        logging_steps=100,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=int(o.edited.get("workers", 0)),
        dataloader_persistent_workers="workers" in o.edited,
        accelerator_config={"non_blocking": "non-blocking" in o.edited},
        torch_compile_mode="reduce-overhead" if o.edited.get("graph") == "compile" else None,
    )
    texts = Labelled(o.steps * BATCH, WORDS, VOCABULARY)
    trainer = Trainer(gpt2(o, words=WORDS, vocabulary=VOCABULARY), arguments, train_dataset=texts)
    trainer.add_callback(Ticking(Clock(o)))
    result = trainer.train()
print(f"{result.training_loss:.6f}")
