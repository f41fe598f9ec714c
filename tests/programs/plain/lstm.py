"""Training of a large LSTM, which cuDNN launches, on sequences that lie on the GPU."""

from __future__ import annotations

import torch
from torch import nn

from tests.programs.plain.options import options

o = options()
WIDTH, LENGTH, BATCH = o.size(1024, 8), o.size(96, 4), o.size(256, 2)

lstm, head = nn.LSTM(WIDTH, WIDTH, num_layers=2).to(o.device), nn.Linear(WIDTH, 64).to(o.device)
optimizer = torch.optim.Adam([*lstm.parameters(), *head.parameters()], lr=1e-4)
sequences = torch.randn(LENGTH, BATCH, WIDTH, device=o.device)
loss = torch.zeros(())
for _ in range(o.steps):
    loss = head(lstm(sequences)[0]).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(lstm.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print(f"{loss.item():.6f}")
