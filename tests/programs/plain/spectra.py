"""Training on spectra of speech: batches lie in pinned memory, but their copies are waited for.

Edit: `unwaited` copies them with `non_blocking=True`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.programs.plain.options import options

o = options("unwaited")
WIDTH, LENGTH, BATCH = o.size(512, 16), o.size(1500, 32), o.size(64, 2)

spectra = [torch.randn(BATCH, 80, LENGTH) for _ in range(4)]
words = [torch.randint(1000, (BATCH,)) for _ in range(4)]
if o.cuda:
    spectra, words = [spectrum.pin_memory() for spectrum in spectra], [word.pin_memory() for word in words]
model = nn.Sequential(
    nn.Conv1d(80, WIDTH, 3, stride=2, padding=1),
    nn.GELU(),
    *(nn.Sequential(nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm1d(WIDTH), nn.GELU()) for _ in range(8)),
    nn.AdaptiveAvgPool1d(1),
    nn.Flatten(),
    nn.Linear(WIDTH, 1000),
).to(o.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loss = torch.zeros(())
for number in range(o.steps):
    heard = spectra[number % 4].to(o.device, non_blocking="unwaited" in o.edits)
    spoken = words[number % 4].to(o.device, non_blocking="unwaited" in o.edits)
    with torch.autocast(o.device, dtype=torch.bfloat16):
        loss = functional.cross_entropy(model(heard), spoken)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{loss.item():.6f}")
