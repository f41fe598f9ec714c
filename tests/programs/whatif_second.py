"""More programs before and after a change that people make, written when `whatif_pairs` was no longer new.

    python -m tests.programs.whatif_second OUTPUT_DIR [PROGRAM...]

Recorded as those are; `traces/second/pairs.toml` says which recording is which change of which other. The programs,
the list and the recordings are older than any prediction of them. Every program does the same work in each of its ways.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from tests.programs.whatif_offloading import Step
from tests.programs.whatif_pairs import captured, record_all, replayed
from tests.programs.whatif_streaming import activations, checkpoint, frames, nearest, recommender

# -- models ---------------------------------------------------------------------------------------


class Gpt2DecoderLayer(nn.Module):
    """A layer of GPT-2 that decodes one token for each sequence."""

    def __init__(self, width: int, heads: int, sequences: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.keys, self.values = (torch.zeros(sequences, heads, context, width // heads) for _ in range(2))

    def cached(self) -> Gpt2DecoderLayer:
        """Its parameters and its cache, on the GPU in half precision."""
        self.keys, self.values = self.keys.half().cuda(), self.values.half().cuda()
        return self.half().cuda()

    def forward(self, hidden: torch.Tensor, position: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        split = self.qkv(self.before(hidden)).view(len(hidden), 3, self.heads, 1, -1)
        query, key, value = split.unbind(1)
        self.keys.index_copy_(2, position, key)
        self.values.index_copy_(2, position, value)
        attention = functional.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=seen)
        hidden = hidden + self.out(attention.reshape(hidden.shape))
        result: torch.Tensor = hidden + self.down(functional.gelu(self.up(self.between(hidden)), approximate="tanh"))
        return result


def generate(way: str) -> Step:
    """A token for each of 16 sequences, and whether all have ended: the host asks at once, a step later, or never."""
    width, heads, sequences, context, vocabulary, end = 768, 12, 16, 512, 50257, 50256
    layers = nn.ModuleList(Gpt2DecoderLayer(width, heads, sequences, context).cached() for _ in range(4))
    words = (0.02 * torch.randn(vocabulary, width)).half().cuda()
    places = (0.02 * torch.randn(context, width)).half().cuda()
    token = torch.zeros(sequences, dtype=torch.int64, device="cuda")
    position, range_ = torch.zeros(1, dtype=torch.int64, device="cuda"), torch.arange(context, device="cuda")
    ended = torch.zeros(sequences, dtype=torch.bool, device="cuda")
    over = torch.zeros(1, dtype=torch.bool, device="cuda")
    kept = [torch.zeros(1, dtype=torch.bool, pin_memory=True) for _ in range(2)]
    events = [torch.cuda.Event() for _ in kept]
    turn = 0

    @torch.no_grad()
    def decode() -> torch.Tensor:
        hidden = words[token] + places[position]
        seen = (range_ <= position).view(1, 1, 1, context)
        for layer in layers:
            hidden = layer(hidden, position, seen)
        torch.argmax(functional.layer_norm(hidden, (width,)) @ words.t(), dim=1, out=token)
        position.add_(1).remainder_(context)
        ended.logical_or_(token == end)
        return torch.all(ended, 0, True, out=over)

    def item() -> None:
        if decode().item():
            ended.zero_()

    def late() -> None:
        nonlocal turn
        slot = turn % 2
        kept[slot].copy_(decode(), non_blocking=True)
        events[slot].record()
        if turn:
            events[1 - slot].synchronize()
            if kept[1 - slot]:
                ended.zero_()
        turn += 1

    if way in ("item", "late"):
        return {"item": item, "late": late}[way]
    if way == "none":
        return decode
    graph = captured(decode)

    def graphed() -> None:
        graph.replay()
        if over.item():
            ended.zero_()

    return graphed


def lstm(way: str) -> Step:
    """Inference of two LSTM cells over 12 moments, one call at a time: little work for each launch."""
    first, second = nn.LSTMCell(192, 640).half().cuda(), nn.LSTMCell(640, 640).half().cuda()
    source = torch.randn(12, 48, 192).half().pin_memory()
    static = torch.zeros(12, 48, 192, dtype=torch.float16, device="cuda")
    zeros = torch.zeros(48, 640, dtype=torch.float16, device="cuda")

    def run() -> torch.Tensor:
        low, high = (zeros, zeros), (zeros, zeros)
        for moment in static:
            low = first(moment, low)
            high = second(low[0], high)
        return high[0]

    return replayed(run, source, static, way)


# -- training -------------------------------------------------------------------------------------


def convnet(way: str) -> Step:
    """Training on 96 images of 192 x 192 in single precision: 40.5 MiB each step, copied late or a step ahead."""
    wide = (48, 96, 192, 384)
    model = nn.Sequential(
        nn.Conv2d(3, wide[0], 5, stride=2, padding=2),
        *(
            nn.Sequential(nn.Conv2d(narrow, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            for narrow, width in itertools.pairwise(wide)
        ),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(wide[-1], 1000),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    batches = [(torch.randn(96, 3, 192, 192), torch.randint(1000, (96,))) for _ in range(3)]
    if way != "pageable":
        batches = [(images.pin_memory(), labels.pin_memory()) for images, labels in batches]
    turn = 0

    def fetch() -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal turn
        images, labels = batches[turn % 3]
        turn += 1
        at_once = way not in ("pageable", "pinned")
        return images.to("cuda", non_blocking=at_once), labels.to("cuda", non_blocking=at_once)

    def train(images: torch.Tensor, labels: torch.Tensor) -> None:
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def late() -> None:
        train(*fetch())

    side = torch.cuda.Stream()

    def ahead() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.cuda.stream(side):
            return fetch()

    if way != "prefetched":
        return late
    following = ahead()

    def prefetched() -> None:
        nonlocal following
        current, batch = torch.cuda.current_stream(), following
        current.wait_stream(side)
        for tensor in batch:
            tensor.record_stream(current)
        following = ahead()
        train(*batch)

    return prefetched


def timed(way: str) -> Step:
    """Training with a synchronize after forward, backward and the optimizer, to time them, or without."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1280, 1280), nn.SiLU()) for _ in range(9)))
    model.to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randn(6144, 1280, dtype=torch.bfloat16, device="cuda")
    spent = [0.0, 0.0, 0.0]

    def stop(part: int, since: float) -> float:
        if way == "synchronize":
            torch.cuda.synchronize()
        now = time.perf_counter()
        spent[part] += now - since
        return now

    def step() -> None:
        clock = time.perf_counter()
        loss = model(batch).square().mean()
        clock = stop(0, clock)
        loss.backward()
        clock = stop(1, clock)
        optimizer.step()
        optimizer.zero_grad()
        stop(2, clock)

    return step


class SlowTexts(Dataset[torch.Tensor]):
    """Each takes a quarter of a millisecond to cut into tokens."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.perf_counter() + 0.00025
        while time.perf_counter() < until:
            pass
        return torch.full((512,), index % 20000)


def texts(way: str) -> Step:
    """Training of a classifier of texts, prepared by the training process or by eight workers."""
    batches = iter(DataLoader(SlowTexts(), batch_size=48, num_workers=8 if way == "workers" else 0))
    embedding = nn.Embedding(20000, 512)
    layers = (nn.Sequential(nn.Conv1d(512, 512, 5, padding=2), nn.ReLU()) for _ in range(4))
    model = nn.Sequential(*layers, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(512, 8)).cuda()
    embedding.cuda()
    optimizer = torch.optim.SGD([*embedding.parameters(), *model.parameters()], lr=1e-3, fused=True)

    def step() -> None:
        tokens = next(batches).to("cuda")
        loss = model(embedding(tokens).transpose(1, 2)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PROGRAMS: dict[Callable[[str], Step], tuple[str, ...]] = {
    generate: ("item", "late", "none", "graph"),
    lstm: ("eager", "graph"),
    convnet: ("pageable", "pinned", "non_blocking", "prefetched"),
    activations: ("pageable", "pinned", "side_streams"),
    checkpoint: ("pageable", "pinned", "side_stream"),
    timed: ("synchronize", "none"),
    nearest: ("pageable", "one_stream", "side_stream"),
    recommender: ("pageable", "apart", "packed"),
    frames: ("one_stream", "one_copy_stream", "two_copy_streams"),
    texts: ("no_workers", "workers"),
}
"""Each program and its ways."""


if __name__ == "__main__":
    record_all(PROGRAMS)
