"""Training of an encoder like BERT that adds up its loss after each step."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.programs.trials.models import encoder
from tests.programs.trials.options import Clock, options

o = options(steps=400)
clock = Clock(o)
WIDTH, LENGTH, BATCH = o.size(512, 16), o.size(128, 8), o.size(32, 2)

model = nn.Sequential(encoder(WIDTH, o.size(6, 1)), nn.Linear(WIDTH, 1000)).to(o.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
texts = torch.randn(16, BATCH, LENGTH, WIDTH, device=o.device)
labels = torch.randint(1000, (16, BATCH, LENGTH), device=o.device)
total = 0.0
for number in range(o.steps):
    with torch.autocast(o.device, dtype=torch.bfloat16):
        guesses = model(texts[number % 16])
        loss = functional.cross_entropy(guesses.flatten(0, 1), labels[number % 16].flatten())
    loss.backward()
    total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    clock.step()
print(f"{total:.6f}")
