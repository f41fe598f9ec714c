"""`finetune` with edits."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from tests.programs.trials.by_hand.edits import batches, fused, graphed, loading, uploaded
from tests.programs.trials.options import Clock, options
from tests.programs.trials.texts import Texts, gpt2

o = options(steps=400, edits=("workers", "pin", "non-blocking", "prefetch", "graph", "fused"))
clock = Clock(o)
BATCH, WORDS, VOCABULARY = o.size(16, 2), o.size(384, 32), o.size(16384, 512)

texts = Texts(o.steps * BATCH, WORDS, VOCABULARY)
loader = DataLoader(texts, batch_size=BATCH, shuffle=True, **loading(o))
model = gpt2(o, words=WORDS, vocabulary=VOCABULARY).to(o.device)
graphed(o, model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **fused(o))
for batch in batches(loader, o):
    tokens = uploaded(batch, o)
    with torch.autocast(o.device, dtype=torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    clock.step()
print(f"{loss.item():.6f}")
