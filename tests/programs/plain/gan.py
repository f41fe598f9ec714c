"""Training of a small GAN as the tutorial has it: two optimizers, and four figures read to be printed in each step.

Edit: `late` reads them when the training is over.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.programs.plain.options import options

o = options("late")
WIDTH, BATCH, NOISE = o.size(64, 4), o.size(64, 4), 64


def up(narrow: int, wide: int, stride: int) -> nn.Module:
    convolution = nn.ConvTranspose2d(narrow, wide, 4, stride, stride - 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(wide), nn.ReLU())


def down(narrow: int, wide: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(narrow, wide, 4, 2, 1, bias=False), nn.BatchNorm2d(wide), nn.LeakyReLU(0.2))


generator = nn.Sequential(
    up(NOISE, 4 * WIDTH, 1),
    up(4 * WIDTH, 2 * WIDTH, 2),
    up(2 * WIDTH, WIDTH, 2),
    nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1),
    nn.Tanh(),
).to(o.device)
discriminator = nn.Sequential(
    down(3, WIDTH), down(WIDTH, 2 * WIDTH), down(2 * WIDTH, 4 * WIDTH), nn.Conv2d(4 * WIDTH, 1, 4), nn.Flatten(0)
).to(o.device)
learns_to_judge = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
learns_to_make = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
photos = torch.randn(BATCH * 16, 3, 32, 32, device=o.device).clamp(-1, 1)
ones, zeros = torch.ones(BATCH, device=o.device), torch.zeros(BATCH, device=o.device)
judge = functional.binary_cross_entropy_with_logits
history: list[torch.Tensor | float] = []
for number in range(o.steps):
    real = photos[BATCH * (number % 16) : BATCH * (number % 16 + 1)]
    fake = generator(torch.randn(BATCH, NOISE, 1, 1, device=o.device))

    scores = discriminator(real)
    judged_fake = discriminator(fake.detach())
    judged = judge(scores, ones) + judge(judged_fake, zeros)
    learns_to_judge.zero_grad()
    judged.backward()
    learns_to_judge.step()

    fooled = discriminator(fake)
    result = judge(fooled, ones)
    learns_to_make.zero_grad()
    result.backward()
    learns_to_make.step()

    figures = [judged.detach(), result.detach(), scores.detach().mean(), fooled.detach().mean()]
    history += figures if "late" in o.edits else [figure.item() for figure in figures]
print(f"{sum(float(figure) for figure in history):.6f}")
