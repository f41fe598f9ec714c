"""Training of an encoder like BERT, in mixed precision, that reads the loss after each step.

Edit: `late` reads the losses when the training is over.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.programs.plain.options import options

o = options("late")
WIDTH, LENGTH, BATCH, VOCABULARY = o.size(512, 16), o.size(128, 8), o.size(32, 2), o.size(30522, 64)


class Encoder(nn.Module):
    """Token and position embeddings, layers, and a guess at each token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, o.size(6, 1), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        guesses: torch.Tensor = self.head(self.layers(self.tokens(tokens) + self.places(places)))
        return guesses


model = Encoder().to(o.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
texts = torch.randint(VOCABULARY, (BATCH * 64, LENGTH), device=o.device)
masks = torch.rand(texts.shape, device=o.device) < 0.15
losses: list[torch.Tensor] = []
total = 0.0
for number in range(o.steps):
    place = slice(BATCH * (number % 64), BATCH * (number % 64 + 1))
    with torch.autocast(o.device, dtype=torch.bfloat16):
        guesses = model(texts[place].masked_fill(masks[place], 0))
        loss = functional.cross_entropy(guesses.flatten(0, 1), texts[place].flatten())
    loss.backward()
    if "late" in o.edits:
        losses.append(loss.detach())
    else:
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
print(f"{total + sum(loss.item() for loss in losses):.6f}")
