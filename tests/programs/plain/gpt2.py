"""Fine-tuning of GPT-2 with AdamW in mixed precision; the training process itself cuts the texts into tokens.

Edits: `workers` has four processes cut them, from pinned memory; `graph` captures forward, backward and the optimizer.
"""

from __future__ import annotations

import random
import re

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

import overlapscope
from tests.programs.plain.graphs import captured
from tests.programs.plain.options import options

o = options("workers", "graph")
LENGTH, VOCABULARY = o.size(512, 32), o.size(50257, 512)
WORDS = ["".join(random.Random(number).choices("etaoinshrdlu", k=6)) for number in range(4096)]


class RandomTexts(Dataset[torch.Tensor]):
    """Made of random words, each of which is a token."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        text = " ".join(random.Random(index).choices(WORDS, k=LENGTH))
        return torch.tensor([hash_of(word) for word in re.findall(r"\w+|[^\w\s]", text)][:LENGTH])


def hash_of(word: str) -> int:
    return int.from_bytes(word.encode(), "little") % VOCABULARY


workers = "workers" in o.edits
loader = DataLoader(
    RandomTexts(), batch_size=o.size(10, 2), num_workers=o.size(4, 1) if workers else 0, pin_memory=workers and o.cuda
)
config = GPT2Config(
    vocab_size=VOCABULARY,
    n_positions=LENGTH,
    n_embd=o.size(768, 32),
    n_layer=o.size(8, 2),
    n_head=o.size(12, 2),
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=0,
    eos_token_id=0,
)
with torch.device(o.device):
    model = GPT2LMHeadModel(config)
graphed = "graph" in o.edits and o.cuda
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=graphed)
static = torch.zeros(o.size(10, 2), LENGTH, dtype=torch.int64, device=o.device)


def train(tokens: torch.Tensor) -> torch.Tensor:
    with torch.autocast(o.device, dtype=torch.bfloat16, cache_enabled=not graphed):
        loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


if graphed:
    replay = captured(lambda: train(static))
loss = torch.zeros(())
for _, tokens in zip(range(o.steps), loader, strict=False):
    if graphed:
        static.copy_(tokens, non_blocking=workers)
        replay()
    else:
        loss = train(tokens.to(o.device, non_blocking=workers))
    overlapscope.step()
print(f"{loss.item():.6f}")
