"""A language model that writes one token after another, and looks at each to see whether the text has ended.

Edit: `late` looks when all tokens have been written.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import overlapscope
from tests.programs.plain.options import options

o = options("late")
WIDTH, HEADS, LAYERS, VOCABULARY, END = o.size(1024, 32), 8, o.size(12, 2), o.size(32000, 100), -1


class GatedDecoderLayer(nn.Module):
    """Attention to all tokens so far, and a gated perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)
        self.keys = self.values = torch.zeros(1, HEADS, 0, WIDTH // HEADS)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.before(hidden)).view(1, 3, HEADS, 1, -1).unbind(1)
        self.keys, self.values = torch.cat((self.keys.to(key), key), 2), torch.cat((self.values.to(value), value), 2)
        attention = functional.scaled_dot_product_attention(query, self.keys, self.values)
        hidden = hidden + self.out(attention.view(1, 1, WIDTH))
        normal = self.between(hidden)
        result: torch.Tensor = hidden + self.down(functional.silu(self.gate(normal)) * self.up(normal))
        return result


kind = torch.float16 if o.cuda else torch.float32
layers = nn.Sequential(*(GatedDecoderLayer() for _ in range(LAYERS))).to(o.device, kind)
words = (0.02 * torch.randn(VOCABULARY, WIDTH)).to(o.device, kind)
token = torch.zeros(1, dtype=torch.int64, device=o.device)
written: list[torch.Tensor] = []
text: list[int] = []
with torch.no_grad():
    for _ in range(o.steps):
        hidden = layers(words[token].view(1, 1, WIDTH))
        token = (hidden.view(1, WIDTH) @ words.t()).argmax(1)
        if "late" in o.edits:
            written.append(token)
        else:
            text.append(int(token.item()))
            if text[-1] == END:
                break
        overlapscope.step()
print(sum(text) + sum(int(token.item()) for token in written))
