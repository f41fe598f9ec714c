"""Spectra that a dataset computes on the GPU."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset


class Spectra(Dataset[torch.Tensor]):
    """Noise, different for each index."""

    def __init__(self, waves: int, samples: int, device: str) -> None:
        self.waves, self.samples, self.device = waves, samples, device

    def __len__(self) -> int:
        return self.waves

    def __getitem__(self, index: int) -> torch.Tensor:
        wave = torch.randn(self.samples, generator=torch.Generator().manual_seed(index))
        spectrum: torch.Tensor = torch.fft.rfft(wave.to(self.device)).abs().log1p().cpu()
        return spectrum
