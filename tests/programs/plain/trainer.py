"""Hugging Face's Trainer with a small GPT-2 on texts that have been cut into tokens before.

Edit: `unfiltered` has it not look in every step whether the loss is a number.
"""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from tests.programs.plain.options import options

o = options("unfiltered")
LENGTH, VOCABULARY = o.size(256, 16), o.size(8192, 64)


class TokensInMemory(Dataset[dict[str, torch.Tensor]]):
    """Tokens that lie in memory."""

    def __init__(self) -> None:
        self.tokens = torch.randint(VOCABULARY, (1024, LENGTH))

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index % len(self.tokens)]
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=o.size(384, 16),
        n_layer=o.size(4, 1),
        n_head=o.size(6, 2),
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=o.steps,
        per_device_train_batch_size=o.size(32, 2),
        use_cpu=not o.cuda,
        bf16=o.cuda,
        logging_steps=o.steps,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=o.cuda,
        logging_nan_inf_filter="unfiltered" not in o.edits,
    )
    result = Trainer(model, arguments, train_dataset=TokensInMemory()).train()
print(f"{result.training_loss:.6f}")
