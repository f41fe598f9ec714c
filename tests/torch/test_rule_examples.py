"""The example programs of the rules run to their end, here with small tensors on the CPU, on a GPU as they are.

On the CPU, `torch.cuda` is replaced by an object whose functions have the same names and signatures and do nothing. The
programs that need more than that are run by `pytest -m gpu` alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.overrides import TorchFunctionMode

from overlapscope import rules

PROGRAMS = {path.stem: path for path in sorted((Path(rules.__file__).parent / "examples").glob("*.py"))}
ONLY_ON_GPU = {
    "data_loading_right": "starts workers",
    "exposed_comm_right": "communicates by NCCL",
    "exposed_comm_wrong": "communicates by NCCL",
    "gil_wait_right": "starts a process that never ends by itself",
    "gil_wait_wrong": "starts a thread that never ends by itself",
    "page_migration_right": "needs CuPy",
    "page_migration_wrong": "needs CuPy",
}
"""Programs that can't run here, and why."""
LARGEST = 16
"""Sizes and counts above this one are as small."""


class OnCpu(TorchFunctionMode):
    """Makes small tensors on the CPU where a program asks for large ones in pinned memory or on a GPU."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.Tensor.pin_memory, torch.Tensor.cuda):
            return args[0]
        kept = {name: _small(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return func(*map(_small, args), **kept)


def _small(value: Any) -> Any:
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(_small, value))
    if isinstance(value, str) and value.startswith("cuda"):
        return "cpu"
    return min(value, LARGEST) if type(value) is int else value


@pytest.fixture(scope="module")
def _stand_in() -> Iterator[None]:
    threads = torch.get_num_threads()
    with (
        mock.patch.object(torch, "cuda", mock.create_autospec(torch.cuda)),
        mock.patch.object(torch.Tensor, "record_stream", return_value=None),
    ):
        yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("_stand_in")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in ONLY_ON_GPU])
def test_an_example_is_a_complete_program(name: str) -> None:
    few = {"range": lambda count: range(min(count, LARGEST)), "__name__": "__main__"}
    with OnCpu():
        exec(compile(PROGRAMS[name].read_text(), name, "exec"), few)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_runs_on_a_gpu(name: str) -> None:
    text = PROGRAMS[name].read_text()
    if "cupy" in text:
        pytest.importorskip("cupy")
    if "cuda:1" in text and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    one_rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    subprocess.run([sys.executable, PROGRAMS[name]], check=True, env=os.environ | one_rank)
