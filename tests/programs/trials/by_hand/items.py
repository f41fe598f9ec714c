"""`items` with edits: a loss is read when the next one has been computed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.programs.trials.by_hand.edits import DelayedReads, fused, graphed
from tests.programs.trials.models import encoder
from tests.programs.trials.options import Clock, options

o = options(steps=400, edits=("late-item", "graph", "fused"))
clock = Clock(o)
WIDTH, LENGTH, BATCH = o.size(512, 16), o.size(128, 8), o.size(32, 2)

model = nn.Sequential(encoder(WIDTH, o.size(6, 1)), nn.Linear(WIDTH, 1000)).to(o.device)
graphed(o, model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **fused(o))
texts = torch.randn(16, BATCH, LENGTH, WIDTH, device=o.device)
labels = torch.randint(1000, (16, BATCH, LENGTH), device=o.device)
total, late = 0.0, DelayedReads()
for number in range(o.steps):
    with torch.autocast(o.device, dtype=torch.bfloat16):
        guesses = model(texts[number % 16])
        loss = functional.cross_entropy(guesses.flatten(0, 1), labels[number % 16].flatten())
    loss.backward()
    total += late.item(loss) if "late-item" in o.edited and o.cuda else loss.item()
    optimizer.step()
    optimizer.zero_grad()
    clock.step()
print(f"{total:.6f}")
