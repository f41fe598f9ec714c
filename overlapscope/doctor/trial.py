"""A trial of PyTorch and its recording of GPUs.

It runs in another process, since a driver or build that does not fit may hang or end that process.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import msgspec

from overlapscope.base.child import Child, how_it_ended

_PATIENCE_S = 120
"""Timeout of the trial, in seconds. The first use of a GPU and of its profiler takes up to half a minute."""
_LAST_WORDS = 300
"""Maximum length of an error's message."""


class TorchTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the trial, as far as it came."""

    torch: str | None = None
    cuda: str | None = None
    rocm: str | None = None
    gpus: tuple[str, ...] = ()
    why_none: str = ""
    """Clause on why PyTorch sees no GPU; empty if it does."""
    recorded: int | None = None
    """Number of GPU ops that torch.profiler recorded in a program with GPU ops; None without a GPU."""
    error: str = ""
    """Message of an error; empty without an error."""


def run() -> TorchTrial:
    """Run the trial. Takes a few seconds to import torch, and uses the first GPU briefly."""
    # The process uses the same modules as this process, however it found them.
    code = f"import sys; sys.path[:] = {sys.path!r}; from overlapscope.doctor.trial import main; main()"
    with Child([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            output, errors = child.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired as expired:
            return msgspec.structs.replace(_last_trial(expired.stdout), error=f"no answer within {_PATIENCE_S} s")
        finally:
            child.end()
    trial = _last_trial(output)
    if child.returncode == 0:
        return trial
    words = errors.decode("utf-8", "replace").strip().splitlines()[-1:]
    error = words[0][:_LAST_WORDS] if words else f"Python {how_it_ended(child.returncode)}"
    return msgspec.structs.replace(trial, error=error)


def _last_trial(output: bytes | None) -> TorchTrial:
    """Return the results from our last line of an output, to which libraries may have added lines of their own."""
    trial_lines = [line for line in (output or b"").splitlines() if line.startswith(b'{"torch"')]
    return msgspec.json.decode(trial_lines[-1], type=TorchTrial) if trial_lines else TorchTrial()


def main() -> None:
    """Print the results on stdout after each part of the trial."""
    # A signal that ends the parent does not reach this process, which may hang in the driver.
    signal.alarm(2 * _PATIENCE_S)
    import torch

    from overlapscope.recorder import devices

    trial = TorchTrial(torch=str(torch.__version__), cuda=torch.version.cuda, rocm=torch.version.hip)
    _print(trial)
    kind = torch.cuda if torch.cuda.device_count() else torch.xpu
    gpus = tuple(kind.get_device_name(number) for number in range(kind.device_count()))
    trial = msgspec.structs.replace(trial, gpus=gpus, why_none="" if gpus else devices.why_unused())
    _print(trial)
    if gpus:
        _print(msgspec.structs.replace(trial, recorded=_recorded(kind)))


def _print(trial: TorchTrial) -> None:
    sys.stdout.write(f"{msgspec.json.encode(trial).decode()}\n")
    sys.stdout.flush()


def _recorded(kind: Any) -> int:
    import torch
    from torch.profiler import profile

    from overlapscope.recorder import devices

    kind.init()
    with profile(activities=devices.activities(cuda=kind is torch.cuda)) as profiler:
        torch.ones(1, device=kind.current_device()).add_(1)
        kind.synchronize()
    return sum(event.device_type().name != "CPU" for event in profiler.profiler.kineto_results.events())
