"""A dataset that draws random numbers, to augment pictures or to mask words, draws the same ones for the same batch in
whatever process it is loaded: runs with different numbers of workers can be compared then.
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
"""Batches of each fetcher, the first ones, which tell what the dataset draws from."""
_KEPT = "_overlapscope_draws"


def start(seed: int) -> Undo:
    """From now on each batch of a dataset with indices has numbers of its own, and leaves those of the program as they
    are. What is returned ends this.
    """

    def fetch(load: Callable[..., Any], fetcher: Any, index: object) -> Any:
        draws: _Draws = vars(fetcher).setdefault(_KEPT, _Draws())
        with draws.seeded(f"{seed} {index}"):
            return load(fetcher, index)

    return around(_MapDatasetFetcher, "fetch", fetch)


class _Generator(Struct, frozen=True):
    """Of random numbers, one for all of a process."""

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
    """What a dataset draws from: seeding only that costs little, and nothing where it draws nothing."""

    def __init__(self) -> None:
        self._unknown = _LOOKED_AT
        """Batches to look at yet."""
        self._used: tuple[_Generator, ...] = ()

    @contextmanager
    def seeded(self, text: str) -> Iterator[None]:
        """Inside, numbers begin with what a text says."""
        generators = _GENERATORS if self._unknown else self._used
        number = zlib.crc32(text.encode())
        before = [one.state() for one in generators]
        try:
            with self._looking(generators, number) if self._unknown else nullcontext():
                for one in generators:
                    one.seed(number)
                yield
        finally:
            for one, state in zip(generators, before, strict=True):
                one.restore(state)

    @contextmanager
    def _looking(self, generators: tuple[_Generator, ...], number: int) -> Iterator[None]:
        """What is drawn next shows whether something has been drawn since."""
        for one in generators:
            one.seed(number)
        first = [one.draw() for one in generators]
        yield
        self._unknown -= 1
        drawn = [one for one, value in zip(generators, first, strict=True) if one.draw() != value]
        self._used = tuple(one for one in generators if one in drawn or one in self._used)
