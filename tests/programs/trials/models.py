"""Models that several scripts train."""

from __future__ import annotations

import torch
from torch import nn

from tests.programs.trials.options import TrialScriptOptions


class Cells(nn.Module):
    """Two layers of LSTM cells, taken one step of time after the other, and a guess at the next values."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.first, self.second = nn.LSTMCell(inputs, width), nn.LSTMCell(width, width)
        self.head = nn.Linear(width, inputs)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Take inputs of shape (time, batch, inputs)."""
        nothing = series.new_zeros(series.shape[1], self.width)
        low = high = (nothing, nothing)
        guesses = []
        for values in series:
            low = self.first(values, low)
            high = self.second(low[0], high)
            guesses.append(self.head(high[0]))
        return torch.stack(guesses)


class Ranker(nn.Module):
    """Guesses whether something is clicked on from its categories and its numbers."""

    def __init__(self, categories: int, numbers: int, rows: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)
        self.dense = nn.Linear(numbers, width)
        self.top = nn.Sequential(nn.Linear((categories + 1) * width, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """Take inputs of shapes (batch, categories) and (batch, numbers)."""
        parts = torch.cat((self.table(categories).flatten(1), self.dense(numbers)), 1)
        scores: torch.Tensor = self.top(parts).squeeze(1)
        return scores


def convolutions(o: TrialScriptOptions, layers: int = 6) -> nn.Sequential:
    """Return a small classifier of photos."""
    width = o.size(96, 4)
    return nn.Sequential(
        nn.Conv2d(3, width, 7, stride=2, padding=3),
        *(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU())
            for _ in range(layers)
        ),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 100),
    )


def encoder(width: int, layers: int) -> nn.TransformerEncoder:
    """As BERT has one, without dropout."""
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


class Patches(nn.Module):
    """Large linear layers on the patches of photos, whose mean is a guess at the class: the GPU has most to do."""

    def __init__(self, patch: int, width: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)))
        self.head = nn.Linear(width, 100)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Take inputs of shape (batch, 3, side, side)."""
        scores: torch.Tensor = self.head(self.layers(self.patches(images).flatten(2).transpose(1, 2)).mean(1))
        return scores
