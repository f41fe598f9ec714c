"""Photos that a DataLoader has to decode, with labels."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import ViTConfig, ViTForImageClassification

from tests.programs.plain.photos import Photos
from tests.programs.trials.options import TrialScriptOptions

CLASSES = 100


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Photos of `side` x `side`, as they come out of their compressed form."""

    def __init__(self, pictures: int, side: int) -> None:
        self.pictures, self.side = pictures, side
        self._photos = Photos(side, 1)

    def __len__(self) -> int:
        return self.pictures

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._photos[index], index % CLASSES


class Cropped(Pictures):
    """A square part of each, at random: `cropped` x `cropped`."""

    @property
    def cropped(self) -> int:
        return self.side * 7 // 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture, label = super().__getitem__(index)
        down, right = torch.randint(self.side - self.cropped, (2,)).tolist()
        return picture[:, down : down + self.cropped, right : right + self.cropped].contiguous(), label


def vision_transformer(o: TrialScriptOptions, side: int) -> nn.Module:
    """Return a small ViT without dropout."""
    return ViTForImageClassification(
        ViTConfig(
            image_size=side,
            patch_size=o.size(16, 4),
            hidden_size=o.size(768, 16),
            intermediate_size=o.size(3072, 32),
            num_hidden_layers=o.size(8, 1),
            num_attention_heads=o.size(12, 2),
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            id2label={number: str(number) for number in range(CLASSES)},
        )
    )
