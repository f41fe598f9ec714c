"""Photos that a DataLoader has to decode."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

Bytes = npt.NDArray[np.uint8]
DISTINCT = 16


class Photos(Dataset[torch.Tensor]):
    """Compressed photos of several sizes, at least `times` as wide as needed, brought to `side` x `side`.

    `resized`: they have been brought to that size beforehand.
    """

    def __init__(self, side: int, times: int, *, resized: bool = False) -> None:
        self.side = side
        self.packed = []
        generator = np.random.default_rng(0)
        for number in range(DISTINCT):
            wide = side * (times + number % times)
            across = np.sin(np.arange(wide) / (5 + number))
            smooth = 60 * (across[:, None, None] + across[None, :, None]) + np.array((120, 125, 130))
            photo = smooth.astype(np.uint8) + generator.integers(8, size=(wide, wide, 3), dtype=np.uint8)
            if resized:
                photo = self._resized(photo)
            self.packed.append((photo.shape, zlib.compress(photo.tobytes(), 1)))

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        shape, packed = self.packed[index % DISTINCT]
        photo = self._resized(np.frombuffer(zlib.decompress(packed), np.uint8).reshape(shape))
        flipped = photo[:, ::-1] if index % 2 else photo
        normal = (flipped.astype(np.float32) / 255 - 0.45) / 0.22
        return torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1)))

    def _resized(self, photo: Bytes) -> Bytes:
        """Every nth pixel, which costs next to nothing: what takes time is to decode all of them."""
        every = len(photo) // self.side
        return photo[::every, ::every][: self.side, : self.side]
