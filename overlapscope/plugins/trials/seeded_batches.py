"""Fixed random numbers for each batch, so that runs with different numbers of workers can be compared.

A dataset that draws random numbers, to augment pictures or mask words, draws the same numbers for a batch in any
process.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from overlapscope.recorder.wrapping import Undo, around

_LOOKED_AT = 4
"""Number of first batches of each fetcher that show which generators the dataset uses."""
_KEPT = "_overlapscope_draws"


def start(seed: int) -> Undo:
    """Seed each batch of a map-style dataset by its indices, without affecting the program's random numbers.

    Returns:
        A function that ends this.
    """

    def fetch(load: Callable[..., Any], fetcher: Any, index: object) -> Any:
        draws: _Draws = vars(fetcher).setdefault(_KEPT, _Draws())
        with draws.seeded(f"{seed} {index}"):
            return load(fetcher, index)

    return around(_MapDatasetFetcher, "fetch", fetch)


class _Generator(Struct, frozen=True):
    """A global random number generator."""

    seed: Callable[[int], object]
    state: Callable[[], Any]
    restore: Callable[[Any], object]
    draw: Callable[[], float]


_TORCH = torch.default_generator  # Not `torch.manual_seed`, which seeds those of GPUs, too.
_GENERATORS = (
    _Generator(random.seed, random.getstate, random.setstate, random.random),
    _Generator(np.random.seed, np.random.get_state, np.random.set_state, np.random.random),
    _Generator(
        _TORCH.manual_seed, _TORCH.get_state, _TORCH.set_state, lambda: torch.rand(1, dtype=torch.double).item()
    ),
)


class _Draws:
    """The generators that a dataset draws from. Seeding only these costs little, and nothing without any."""

    def __init__(self) -> None:
        self._unknown = _LOOKED_AT
        """Number of batches left to observe."""
        self._used: tuple[_Generator, ...] = ()

    @contextmanager
    def seeded(self, text: str) -> Iterator[None]:
        """Seed the generators from a text, inside the block."""
        generators = _GENERATORS if self._unknown else self._used
        number = zlib.crc32(text.encode())
        before = [generator.state() for generator in generators]
        try:
            with self._looking(generators, number) if self._unknown else nullcontext():
                for generator in generators:
                    generator.seed(number)
                yield
        finally:
            for generator, state in zip(generators, before, strict=True):
                generator.restore(state)

    @contextmanager
    def _looking(self, generators: tuple[_Generator, ...], number: int) -> Iterator[None]:
        """Find the generators used inside the block, by their next draw."""
        for generator in generators:
            generator.seed(number)
        first = [generator.draw() for generator in generators]
        yield
        self._unknown -= 1
        drawn = [generator for generator, value in zip(generators, first, strict=True) if generator.draw() != value]
        self._used = tuple(generator for generator in generators if generator in drawn or generator in self._used)
