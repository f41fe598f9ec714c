"""Description of this machine, including the speed of its link between host and GPU; as a program, it prints that."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import torch

from overlapscope.plugins.laboratory.results import Link, Machine

_SIZES_MIB = (64, 128, 256)
_COPIES = 5
"""Number of copies of each size and direction, of which the best counts."""


def describe() -> Machine:
    """Describe this machine. Measuring the link takes about a second if there is a GPU."""
    gpus = tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    link, driver = _link_and_driver() if gpus else (Link(), None)
    return Machine(
        gpus=gpus,
        gpu_memory_bytes=torch.cuda.get_device_properties(0).total_memory if gpus else None,
        driver=driver,
        cuda=torch.version.cuda,
        torch=str(torch.__version__),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        memory_bytes=_memory(),
        link=link,
    )


def _cpu() -> str | None:
    try:
        model = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        model = None
    return model[1].strip() if model else platform.processor() or None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _link_and_driver() -> tuple[Link, str | None]:
    copies = _Copies()
    # The link is read while it is busy, because an idle link saves power at a lower generation.
    with ThreadPoolExecutor(1) as other:
        reading = other.submit(_nvidia_smi)
        while not reading.done():
            copies.both(_SIZES_MIB[0])
        driver, generation_max, generation, width = reading.result()
    link = Link(
        pcie_generation=_number(generation),
        pcie_generation_max=_number(generation_max),
        pcie_width=_number(width),
        h2d_gb_per_s=_best(copies.h2d),
        d2h_gb_per_s=_best(copies.d2h),
        both_gb_per_s=_best(copies.both),
    )
    return link, driver


def _nvidia_smi() -> tuple[str | None, str | None, str | None, str | None]:
    """Return driver version, maximum and current PCIe generation, and link width of PyTorch's first GPU."""
    fields = "driver_version,pcie.link.gen.max,pcie.link.gen.current,pcie.link.width.current"
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    which = [f"--id=GPU-{uuid}"] if uuid is not None else []
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", *which],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None, None, None, None
    driver, generation_max, generation, width = (field.strip() for field in done.stdout.splitlines()[0].split(","))
    return driver, generation_max, generation, width


def _number(text: str | None) -> int | None:
    """Return a number; None where nvidia-smi has none (`[N/A]`)."""
    return int(text) if text is not None and text.isdecimal() else None


def _best(copy: Callable[[int], float]) -> float:
    return max(copy(mib) for mib in _SIZES_MIB for _ in range(_COPIES))


class _Copies:
    """Timed copies between pinned memory and the GPU. Each method returns 1e9 bytes per second."""

    def __init__(self) -> None:
        size = max(_SIZES_MIB) << 20
        self._host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._gpu = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self._streams = [torch.cuda.Stream() for _ in range(2)]

    def h2d(self, mib: int) -> float:
        return self._timed(mib, [(self._gpu[0], self._host[0])])

    def d2h(self, mib: int) -> float:
        return self._timed(mib, [(self._host[0], self._gpu[0])])

    def both(self, mib: int) -> float:
        """Return the sum of both directions at once."""
        return self._timed(mib, [(self._gpu[0], self._host[0]), (self._host[1], self._gpu[1])])

    def _timed(self, mib: int, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        torch.cuda.synchronize()
        marks = []
        for (target, source), stream in zip(copies, self._streams, strict=False):
            with torch.cuda.stream(stream):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                target[: mib << 20].copy_(source[: mib << 20], non_blocking=True)
                end.record()
                marks.append((begin, end))
        torch.cuda.synchronize()
        first = marks[0][0]
        took_ms: float = max(first.elapsed_time(end) for _, end in marks)
        return len(copies) * (mib << 20) / took_ms / 1e6


if __name__ == "__main__":
    print(msgspec.json.encode(describe()).decode())
