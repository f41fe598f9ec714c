"""Questions to the GPUs around a recording, none of which initializes them.

A program may choose its GPUs or fork after it has imported torch; either fails once CUDA is initialized.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from overlapscope.recorder.main_thread import threads_without_signals


def cuda_is_up() -> bool:
    """Return whether this process has initialized CUDA (or ROCm, which goes by that name)."""
    import torch

    return bool(torch.cuda.is_initialized())


def activities(*, cuda: bool) -> set[Any]:
    """Return the `ProfilerActivity`s of the CPU and of the devices in use. `cuda` states whether CUDA is in use."""
    import torch
    from torch.profiler import ProfilerActivity

    in_use = {ProfilerActivity.CPU}
    if cuda:
        in_use.add(ProfilerActivity.CUDA)
    elif torch.xpu.is_initialized():
        in_use.add(ProfilerActivity.XPU)
    return in_use


def synchronize() -> None:
    """Wait until every device in use has finished its work. Raises RuntimeError if a device has failed."""
    import torch

    if cuda_is_up():
        for device in range(torch.cuda.device_count()):
            # No public function says which devices are in use, and waiting for another device would initialize it.
            if torch._C._cuda_hasPrimaryContext(device):  # type: ignore[attr-defined]
                torch.cuda.synchronize(device)
    elif torch.xpu.is_initialized():
        torch.xpu.synchronize()


def finish_within(limit_s: float) -> bool:
    """Wait until every device in use has finished its work or failed. Returns false if one takes longer than this."""

    def wait() -> None:
        with suppress(RuntimeError):
            synchronize()

    waiting = threading.Thread(target=wait, name="overlapscope", daemon=True)
    with threads_without_signals():
        waiting.start()
    waiting.join(limit_s)
    return not waiting.is_alive()


def cuda_may_come_up() -> bool:
    """Return whether there is a GPU, but this process has not initialized CUDA yet.

    This asks the driver's management library, which changes nothing. The start of a profiler, even of the CPU alone,
    settles this: CUDA_VISIBLE_DEVICES is not read any more, and forked children cannot use CUDA (torch 2.11).
    """
    import torch

    return torch.backends.cuda.is_built() and not cuda_is_up() and torch.cuda.device_count() > 0


def why_unused() -> str:
    """Return a clause on why the program may have used no GPU, to which a sentence can be continued."""
    import torch

    if not (torch.backends.cuda.is_built() or torch.xpu._is_compiled()):
        return f"this PyTorch ({torch.__version__}) is built for CPUs only"
    count = max(torch.cuda.device_count(), torch.xpu.device_count())
    if count:
        return (
            f"the program did not use {'the GPU' if count == 1 else f'any of the {count} GPUs'} that PyTorch sees here"
        )
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        if name in os.environ:
            return f"PyTorch sees no GPU with {name}={os.environ[name]!r}"
    return "PyTorch sees no GPU here: there is none, or its driver is missing or too old for this PyTorch"


def capturing() -> bool:
    """Return whether this thread is capturing a CUDA graph, which any wait for the device would break.

    False if the device has failed, as the program will notice itself.
    """
    import torch

    with suppress(RuntimeError):
        return cuda_is_up() and torch.cuda.is_current_stream_capturing()
    return False


def when_cuda_comes_up(callback: Callable[[], None]) -> None:
    """Call `callback` on the thread that initializes CUDA. It must not raise.

    CUDA can be used by then, though `cuda_is_up` becomes true only afterwards.
    """
    import torch

    if torch.backends.cuda.is_built() and not cuda_is_up():
        # The queue that torch.cuda.manual_seed uses, since no public function reports when CUDA is initialized.
        torch.cuda._lazy_call(callback)
