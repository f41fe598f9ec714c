"""Twelve programs of different kinds, to record: each function prepares one and returns its step.

They need nothing but torch, and run on a CPU too, where they are smaller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], object]
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def _size(gpu: int, cpu: int) -> int:
    return gpu if CUDA else cpu


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


def _encoder(width: int, layers: int) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(DEVICE)


def language_model() -> Step:
    """Return a step of training a small language model with autocast and AdamW."""
    width, words = _size(512, 64), _size(8192, 256)
    model = nn.Sequential(nn.Embedding(words, width), _encoder(width, 8), nn.Linear(width, words)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(words, (_size(8, 2), _size(256, 16)), device=DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fine_tuning() -> Step:
    """Return a step of fine-tuning an encoder, with clipped gradients, a schedule and the loss read each time."""
    width = _size(384, 64)
    model = nn.Sequential(_encoder(width, 6), nn.Linear(width, 2)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    inputs, labels = _random(16, _size(128, 16), width), torch.zeros(16, dtype=torch.long, device=DEVICE)

    def step() -> float:
        loss = functional.cross_entropy(model(inputs)[:, 0], labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.item()

    return step


class _Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(x + self.norms[1](self.second(y)))


def image_classifier() -> Step:
    """Return a step of training a residual network on small images, with SGD and momentum."""
    width = _size(64, 8)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        *[_Block(width) for _ in range(8)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    ).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.randn(64, 3, 32, 32), torch.zeros(64, dtype=torch.long)
    if CUDA:
        images, labels = images.pin_memory(), labels.pin_memory()

    def step() -> None:
        there, expected = images.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
        functional.cross_entropy(model(there), expected).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def differential_equation() -> Step:
    """Return a step of training a neural ODE: many tiny ops, by the Runge-Kutta method."""
    model = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2)).to(DEVICE)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    start, wanted = _random(20, 2), _random(20, 2)

    def step() -> None:
        y, dt = start, 0.05
        for _ in range(20):
            k1 = model(y**3)
            k2 = model((y + dt / 2 * k1) ** 3)
            k3 = model((y + dt / 2 * k2) ** 3)
            k4 = model((y + dt * k3) ** 3)
            y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        (y - wanted).abs().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def token_generation() -> Step:
    """Return a step of generating a token with caches of keys and values, read by the host each time."""
    width, layers, words, length = _size(512, 64), 8, 1024, 256
    embed, norm, out = nn.Embedding(words, width), nn.LayerNorm(width), nn.Linear(width, words)
    attend = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
    project = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
    for module in (embed, norm, out, attend, project):
        module.to(DEVICE)
    caches = [_random(2, 1, 8, length, width // 8) for _ in range(layers)]
    state: dict[str, Any] = {"token": torch.zeros(1, 1, dtype=torch.long, device=DEVICE), "at": 0}

    @torch.inference_mode()
    def step() -> int:
        x, at = embed(state["token"]), state["at"]
        for qkv_of, out_of, cache in zip(attend, project, caches, strict=True):
            query, key, value = qkv_of(norm(x)).view(1, 1, 3, 8, -1).permute(2, 0, 3, 1, 4)
            cache[0, :, :, at : at + 1] = key
            cache[1, :, :, at : at + 1] = value
            attended = functional.scaled_dot_product_attention(
                query, cache[0, :, :, : at + 1], cache[1, :, :, : at + 1]
            )
            x = x + out_of(attended.transpose(1, 2).flatten(2))
        token = out(norm(x)).softmax(-1).argmax(-1)
        state.update(token=token, at=(at + 1) % length)
        return int(token.item())

    return step


def diffusion() -> Step:
    """Return a step of training a small denoising network, with an average of its weights."""
    width = _size(64, 8)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        *[nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(12)],
        nn.Conv2d(width, 3, 3, padding=1),
    ).to(DEVICE)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    images = _random(16, 3, _size(64, 16), _size(64, 16))

    def step() -> None:
        noise, share = torch.randn_like(images), torch.rand(16, 1, 1, 1, device=DEVICE)
        noisy = share.sqrt() * images + (1 - share).sqrt() * noise
        functional.mse_loss(model(noisy), noise).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.mul_(0.999).add_(parameter, alpha=0.001)

    return step


def vision_inference() -> Step:
    """Return a step of inference with a vision transformer, whose result is copied to the host."""
    width = _size(384, 64)
    patches, encoder, head = nn.Conv2d(3, width, 16, 16), _encoder(width, 12), nn.Linear(width, 1000)
    for module in (patches, encoder, head):
        module.to(DEVICE).eval()
    images = torch.randn(8, 3, _size(224, 32), _size(224, 32))
    if CUDA:
        images = images.pin_memory()

    @torch.inference_mode()
    def step() -> object:
        x = patches(images.to(DEVICE, non_blocking=True)).flatten(2).transpose(1, 2)
        return head(encoder(x).mean(1)).topk(5).indices.cpu()

    return step


def graph_network() -> Step:
    """Return a step of training a graph network on all nodes."""
    nodes, width = _size(2700, 300), 16
    edges = torch.randint(nodes, (2, 4 * nodes), device=DEVICE)
    adjacency = torch.sparse_coo_tensor(edges, torch.ones(4 * nodes, device=DEVICE), (nodes, nodes)).coalesce()
    first, second = nn.Linear(500, width).to(DEVICE), nn.Linear(width, 7).to(DEVICE)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)
    features, labels = _random(nodes, 500), torch.zeros(nodes, dtype=torch.long, device=DEVICE)

    def step() -> float:
        hidden = functional.dropout(torch.sparse.mm(adjacency, first(features)).relu())
        result = torch.sparse.mm(adjacency, second(hidden))
        loss = functional.cross_entropy(result, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step


def adversarial() -> Step:
    """Return a step of training two networks against each other, each with its optimizer."""
    width = _size(64, 8)

    def up(inside: int, outside: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(inside, outside, 4, 2, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]

    def down(inside: int, outside: int) -> list[nn.Module]:
        return [nn.Conv2d(inside, outside, 4, 2, 1, bias=False), nn.BatchNorm2d(outside), nn.LeakyReLU(0.2)]

    make = nn.Sequential(*up(100, 4 * width), *up(4 * width, 2 * width), *up(2 * width, width), *up(width, 3)[:1])
    judge = nn.Sequential(*down(3, width), *down(width, 2 * width), *down(2 * width, 1), nn.AdaptiveAvgPool2d(1))
    make.to(DEVICE)
    judge.to(DEVICE)
    optimizers = [torch.optim.Adam(model.parameters(), lr=2e-4) for model in (judge, make)]
    real = _random(32, 3, 16, 16)

    def step() -> None:
        fake = make(torch.randn(32, 100, 1, 1, device=DEVICE))
        for optimizer in optimizers:
            optimizer.zero_grad()
        (judge(fake.detach()).mean() - judge(real).mean()).backward()
        optimizers[0].step()
        (-judge(fake).mean()).backward()
        optimizers[1].step()

    return step


def recurrent() -> Step:
    """Return a step of training a recurrent network, step by step in Python."""
    cell, out = nn.LSTMCell(128, 128).to(DEVICE), nn.Linear(128, 10).to(DEVICE)
    optimizer = torch.optim.SGD([*cell.parameters(), *out.parameters()], lr=0.1)
    inputs, labels = _random(60, 32, 128), torch.zeros(32, dtype=torch.long, device=DEVICE)

    def step() -> None:
        h, c = torch.zeros(32, 128, device=DEVICE), torch.zeros(32, 128, device=DEVICE)
        for x in inputs:
            h, c = cell(x, (h, c))
        functional.cross_entropy(out(h), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def reinforcement() -> Step:
    """Return a step of acting and learning: sixteen small decisions read by the host, then an update."""
    policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)).to(DEVICE)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)

    def step() -> None:
        seen = [torch.randn(8)]
        for _ in range(16):
            with torch.no_grad():
                action = policy(seen[-1].to(DEVICE)).softmax(-1).argmax().item()
            seen.append(seen[-1] * 0.9 + 0.1 * action)
        batch = torch.stack(seen).to(DEVICE)
        policy(batch).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def large_layers() -> Step:
    """Return a training step of a few large layers, which keep a GPU busy while the host has time to spare."""
    width = _size(4096, 128)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(6)]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = _random(width, width)

    def step() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PROGRAMS: dict[str, Callable[[], Any]] = {
    program.__name__: program
    for program in (
        language_model,
        fine_tuning,
        image_classifier,
        differential_equation,
        token_generation,
        diffusion,
        vision_inference,
        graph_network,
        adversarial,
        recurrent,
        reinforcement,
        large_layers,
    )
}
