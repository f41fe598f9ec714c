"""Training of a vision transformer in mixed precision on images that lie on the GPU."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.programs.plain.options import options

o = options()
WIDTH, SIDE, PATCH, BATCH = o.size(768, 16), o.size(224, 16), o.size(16, 4), o.size(96, 2)


class VisionTransformer(nn.Module):
    """Patches, layers, and a guess at the class."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.places = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, o.size(6, 1), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        guesses: torch.Tensor = self.head(self.layers(tokens).mean(1))
        return guesses


images, labels = (
    torch.randn(4 * BATCH, 3, SIDE, SIDE, device=o.device),
    torch.randint(1000, (4 * BATCH,), device=o.device),
)
model = VisionTransformer().to(o.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loss = torch.zeros(())
for number in range(o.steps):
    place = slice(BATCH * (number % 4), BATCH * (number % 4 + 1))
    with torch.autocast(o.device, dtype=torch.bfloat16):
        loss = functional.cross_entropy(model(images[place]), labels[place])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{loss.item():.6f}")
