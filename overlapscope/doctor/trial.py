"""Which PyTorch this is, and whether it records what a GPU does: tried in a process of its own, since a driver or a
build that does not fit may hang or end it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec

from overlapscope.base.child import Child, how_it_ended

_PATIENCE_S = 120
"""The first use of a GPU and of its profiler takes up to half a minute."""
_LAST_WORDS = 300


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What PyTorch said, as far as it came."""

    torch: str | None = None
    cuda: str | None = None
    rocm: str | None = None
    gpus: tuple[str, ...] = ()
    why_none: str = ""
    """A clause, where there is no GPU."""
    recorded: int | None = None
    """How many GPU ops torch.profiler recorded of a program that has some; None where it was not tried."""
    error: str = ""
    """What went wrong, where something did."""


def run() -> Trial:
    """Try it: takes the seconds that importing torch takes, and uses the first GPU for a moment."""
    # The same modules as here, whichever way this process found them.
    code = f"import sys; sys.path[:] = {sys.path!r}; from overlapscope.doctor.trial import main; main()"
    child = Child([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
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


def _last_trial(output: bytes | None) -> Trial:
    """The last line of ours: libraries may have printed others."""
    ours = [line for line in (output or b"").splitlines() if line.startswith(b'{"torch"')]
    return msgspec.json.decode(ours[-1], type=Trial) if ours else Trial()


def main() -> None:
    """Tell what is known on stdout, more each time."""
    import torch

    from overlapscope.recorder import devices

    trial = Trial(torch=str(torch.__version__), cuda=torch.version.cuda, rocm=torch.version.hip)
    _tell(trial)
    kind = torch.cuda if torch.cuda.device_count() else torch.xpu
    gpus = tuple(kind.get_device_name(number) for number in range(kind.device_count()))
    trial = msgspec.structs.replace(trial, gpus=gpus, why_none="" if gpus else devices.why_unused())
    _tell(trial)
    if gpus:
        _tell(msgspec.structs.replace(trial, recorded=_recorded(kind)))


def _tell(trial: Trial) -> None:
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
