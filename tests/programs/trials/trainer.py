"""Hugging Face's Trainer with a small GPT-2; the training process itself cuts the texts into tokens."""

from __future__ import annotations

import tempfile

from transformers import Trainer, TrainingArguments

from tests.programs.trials.callbacks import Ticking
from tests.programs.trials.options import Clock, options
from tests.programs.trials.texts import Labelled, gpt2

o = options(steps=400)
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
    )
    texts = Labelled(o.steps * BATCH, WORDS, VOCABULARY)
    trainer = Trainer(gpt2(o, words=WORDS, vocabulary=VOCABULARY), arguments, train_dataset=texts)
    trainer.add_callback(Ticking(Clock(o)))
    result = trainer.train()
print(f"{result.training_loss:.6f}")
