"""`spectra` with edits."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.programs.trials.by_hand.edits import batches, graphed, loading, uploaded
from tests.programs.trials.options import Clock, options
from tests.programs.trials.waves import Spectra

o = options(steps=300, edits=("workers", "pin", "non-blocking", "prefetch", "graph"))
clock = Clock(o)
BATCH, SAMPLES, WIDTH = o.size(32, 2), o.size(16384, 64), o.size(1024, 8)

loader = DataLoader(Spectra(o.steps * BATCH, SAMPLES, o.device), batch_size=BATCH, shuffle=True, **loading(o))
bins = SAMPLES // 2 + 1
model = nn.Sequential(nn.Linear(bins, WIDTH), nn.ReLU(), nn.Linear(WIDTH, bins)).to(o.device)
graphed(o, model, torch.zeros(BATCH, bins, device=o.device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for batch in batches(loader, o):
    spectra = uploaded(batch, o)
    loss = (model(spectra) - spectra).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.step()
print(f"{loss.item():.6f}")
