"""Training of a language model on texts that Python splits into tokens, in each step, by the longest known word.

Fixed: the texts are split before the first step.
"""

from __future__ import annotations

import random

import torch
from torch import nn

from tests.programs.host.options import PlantedTimer, network, options

o = options()
WIDTH, LONGEST = o.size(2048, 16), 6
random.seed(0)
words = [*"abcdefgh", *("".join(random.choices("abcdefgh", k=random.randint(2, LONGEST))) for _ in range(3_000))]
vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
texts = ["".join(random.choices("abcdefgh", k=o.size(1_000, 20))) for _ in range(o.size(32, 2))]


def tokenize(text: str) -> list[int]:
    tokens, place = [], 0
    while place < len(text):  # planted
        for length in range(LONGEST, 0, -1):  # planted
            token = vocabulary.get(text[place : place + length])  # planted
            if token is not None:  # planted
                tokens.append(token)  # planted
                place += length  # planted
                break
    return tokens


embedding = nn.EmbeddingBag(len(vocabulary), WIDTH, mode="mean", device=o.device)
model = nn.Sequential(network(o))
optimizer = torch.optim.SGD([*embedding.parameters(), *model.parameters()], lr=1e-3, fused=True)
before = [tokenize(text) for text in texts]
copies = o.size(64, 2)
planted = PlantedTimer(o)
total = 0.0
for _ in planted.steps():
    if planted.fixed:
        split = before
    else:
        with planted:
            split = [tokenize(text) for text in texts]
    ends = torch.tensor([len(tokens) for tokens in split])
    offsets = (ends.cumsum(0) - ends).to(o.device)
    inputs = torch.tensor([token for tokens in split for token in tokens], device=o.device)
    loss = model(embedding(inputs, offsets).repeat(copies, 1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += loss.item()
