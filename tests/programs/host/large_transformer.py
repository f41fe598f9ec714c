"""Training of a transformer on long texts, with clipped gradients: the GPU decides how long a step takes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.programs.host.options import PlantedTimer, options

o = options()
WIDTH, LENGTH, BATCH, VOCABULARY = o.size(1024, 16), o.size(1024, 8), o.size(16, 2), o.size(8192, 64)
embedding = nn.Embedding(VOCABULARY, WIDTH, device=o.device)
layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True)
layers = nn.TransformerEncoder(layer, o.size(4, 1), enable_nested_tensor=False).to(o.device)
parameters = [*embedding.parameters(), *layers.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
texts = torch.randint(VOCABULARY, (BATCH, LENGTH), device=o.device)
for _ in PlantedTimer(o).steps():
    with torch.autocast(o.device, dtype=torch.bfloat16):
        guesses = layers(embedding(texts)) @ embedding.weight.t()
        loss = functional.cross_entropy(guesses.flatten(0, 1), texts.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()
