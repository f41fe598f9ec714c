"""Results of a program and of its last step, as a digest and sketches.

The digest shows whether two runs are the same bit for bit, and the sketches how far apart different results are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
from msgspec.structs import replace
from torch.optim import Optimizer

from overlapscope.plugins.trials.observed import ModuleCalls, tensors
from overlapscope.plugins.trials.protocol import BUCKETS, RankResults, Sketch
from overlapscope.recorder.wrapping import before

_CHUNK_ELEMENTS = 1 << 20
"""Number of elements to process at a time, a multiple of BUCKETS."""
_NOT_FINITE = 1e30
"""Replaces NaN, and with the sign and doubled, infinity."""
_MIXING_FACTORS = (-7046029254386353131, -4658895280553007687, -7723592293110705685)
"""Odd 64-bit numbers that spread indices over all bits (those of splitmix64)."""
_WORD_TYPES = {1: torch.int8, 2: torch.int16}
"""Integers by the bytes of an element; wider elements are read 4 bytes at a time."""


def optimizer_results(optimizers: Iterable[Optimizer]) -> RankResults | None:
    """Return the results of all parameters and optimizer states; None without any."""
    return _of(_trained(optimizers))


def with_last_step(results: RankResults | None, last: LastStep) -> RankResults:
    """Add the last step's loss, and the tensors of its output if there are no other results."""
    final = results or _of((f"output {path}", tensor) for path, tensor in tensors(last.output))
    return replace(final or RankResults(digest="", sketches=(), loss=None), loss=number(last.loss))


def number(tensor: torch.Tensor | None) -> float | None:
    """Return a loss as a number; None if it is not a finite number."""
    if tensor is None or tensor.numel() != 1 or tensor.is_complex() or tensor.is_meta:
        return None
    value = float(_local(tensor))
    return value if math.isfinite(value) else None


def _of(named: Iterable[tuple[str, object]]) -> RankResults | None:
    digest, sketches, some = hashlib.sha256(), [], False
    with torch.no_grad():
        for name, value in named:
            some = True
            digest.update(name.encode())
            if not isinstance(value, torch.Tensor):
                digest.update(repr(value).encode())
                continue
            for part, plain in _plain(value):
                digest.update(f"{plain.dtype}{list(plain.shape)}{_checksum(plain)}".encode())
                if part == "":
                    sketches.append(sketch(name, plain))
    return RankResults(digest=digest.hexdigest(), sketches=tuple(sketches), loss=None) if some else None


def _trained(optimizers: Iterable[Optimizer]) -> Iterator[tuple[str, object]]:
    seen: set[int] = set()
    for place, optimizer in enumerate(optimizers):
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for index, parameter in enumerate(parameters):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"optimizer {place} parameter {index}", parameter
            for key, value in sorted(optimizer.state.get(parameter, {}).items(), key=lambda item: str(item[0])):
                if isinstance(value, torch.Tensor | int | float):
                    yield f"optimizer {place} {key} {index}", value


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor."""
    to_local = getattr(tensor, "to_local", None)
    local: torch.Tensor = tensor if to_local is None else to_local()
    return local.detach()


def _plain(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the strided tensors that a tensor consists of on this rank; none for a tensor without data."""
    tensor = _local(tensor)
    if tensor.is_meta or tensor.is_quantized:
        return
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        yield "indices", tensor.indices()
        tensor = tensor.values()
    if tensor.layout is torch.strided:
        yield "", torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _checksum(tensor: torch.Tensor) -> list[int]:
    """Return a checksum of 128 bits that almost surely changes with any bit of a strided tensor.

    It is computed on the tensor's device, from sums of its words in random proportions, modulo 2^64 (Carter and Wegman:
    Universal classes of hash functions, 1979).
    """
    words = tensor.contiguous().reshape(-1).view(_WORD_TYPES.get(tensor.element_size(), torch.int32))
    numbers, sums = _random(words.device), torch.zeros(2, dtype=torch.int64, device=words.device)
    for place, begin in enumerate(range(0, words.numel(), _CHUNK_ELEMENTS)):
        part = words[begin : begin + _CHUNK_ELEMENTS].to(torch.int64)
        weighed = torch.stack([(part * weights[: part.numel()]).sum() for weights in numbers])
        sums = sums * _MIXING_FACTORS[place % len(_MIXING_FACTORS)] + weighed
    return sums.tolist()


def sketch(name: str, tensor: torch.Tensor) -> Sketch:
    """Sketch a strided, real tensor, on its device."""
    flat = tensor.reshape(-1)
    bits, sums = _random(flat.device)[0], torch.zeros(BUCKETS, dtype=torch.float64, device=flat.device)
    square = torch.zeros((), dtype=torch.float64, device=flat.device)
    for place, begin in enumerate(range(0, flat.numel(), _CHUNK_ELEMENTS)):
        part = flat[begin : begin + _CHUNK_ELEMENTS].to(torch.float64)
        part = part.nan_to_num(_NOT_FINITE, 2 * _NOT_FINITE, -2 * _NOT_FINITE)
        square += part.square().sum()
        part = torch.where((bits[: part.numel()] >> (place % 63)) & 1 == 1, part, -part)
        sums += torch.nn.functional.pad(part, (0, -part.numel() % BUCKETS)).view(-1, BUCKETS).sum(0)
    values = torch.cat([square.sqrt().reshape(1), sums]).tolist()
    return Sketch(name, values[0], tuple(values[1:]))


@cache
def _random(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two pseudorandom 64-bit numbers for each element of a chunk, the same on every device."""
    numbers = torch.arange(1, _CHUNK_ELEMENTS + 1, device=device)
    first = _mix(_mix(numbers, _MIXING_FACTORS[0]), _MIXING_FACTORS[1])
    return first, _mix(first, _MIXING_FACTORS[2])


def _mix(numbers: torch.Tensor, factor: int) -> torch.Tensor:
    product = numbers * factor
    return product ^ (product >> 31)


class LastStep:
    """Observes the program until `end`."""

    def __init__(self, *, output: bool) -> None:
        """Begin to observe; `output` to keep a module's output as well."""
        self.loss: torch.Tensor | None = None
        """Tensor of the last `backward` call, detached."""
        self.output: Any = None
        self._undo = before(torch.autograd, "backward", self._backward)
        self._calls = ModuleCalls() if output else None

    def end(self) -> None:
        """Stop observing."""
        self._undo()
        if self._calls is not None:
            self._calls.end()
            self.output = self._calls.output

    def _backward(self, tensors: Any, *args: Any, **options: Any) -> None:
        first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        self.loss = first.detach() if isinstance(first, torch.Tensor) else None
