"""Pinning in other threads: a TensorDict goes to the GPU while four threads pin the next tensors.

From the PyTorch tutorial "A guide on good usage of non_blocking and pin_memory()": a `tensordict.TensorDict` of a
thousand tensors of a million floats is copied as a whole, waiting for each tensor or not, and with `non_blocking_pin`,
which pins each tensor before its copy: in the calling thread (`num_threads=0`) or in four others. In four threads, the
host's copies run beside each other and beside the GPU's.

Look at the memory kind of the copies and at the causes of idle time between them. `td.to()` without arguments is
non-blocking already. Nothing computes, so no copy can be hidden.
"""

from __future__ import annotations

from typing import Any

import torch

from overlapscope.base.extras import how_to_install
from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant


def prepare(tensors: int, elements: int, recorded_tensors: int, **how: Any) -> Program:
    """Prepare the copy with `how`, the arguments of `TensorDict.to`."""
    try:
        from tensordict import TensorDict
    except ModuleNotFoundError:
        raise RuntimeError(f"pin_threads needs tensordict. {how_to_install('record')}") from None

    # The published figures were taken with a single CPU thread, by torch.utils.benchmark's Timer.
    torch.set_num_threads(1)
    sources = {str(number): torch.ones(elements) for number in range(tensors)}
    whole = TensorDict(sources, batch_size=[])
    part = TensorDict({name: sources[name] for name in list(sources)[:recorded_tensors]}, batch_size=[])

    def copy(source: TensorDict) -> None:
        source.to("cuda", **how)
        torch.cuda.synchronize()

    return Program(lambda: copy(whole), recorded_step=lambda: copy(part))


# Nothing computes, so copies from pinned memory have nothing to hide under.
PAGEABLE = Truth(
    exposed_copy="pageable-memory",
    hidden_copy_pct=(0.0, 0.0),
    findings=("pageable-memory",),
    no_findings=("pin-in-loop", "blocking-copy"),
    least_share=0.95,
)
PINNED = Truth(
    exposed_copy="no-compute",
    hidden_copy_pct=(0.0, 0.0),
    no_findings=("pageable-memory", "blocking-copy"),
    least_share=0.95,
)

EXPERIMENT = Experiment(
    name="pin_threads",
    title="Pinning a TensorDict in other threads",
    shows="Pinning on the way pays off only when several threads do it beside the copies.",
    sizes={
        "small": {"tensors": 250, "elements": 1_000_000, "recorded_tensors": 100},
        "paper": {"tensors": 1000, "elements": 1_000_000, "recorded_tensors": 100},
    },
    prepare=prepare,
    variants=(
        Variant(
            "blocking",
            {"non_blocking": False},
            shows="The host waits for each tensor.",
            truth=PAGEABLE,
            published={"wall_ms": 619.8},
        ),
        Variant(
            "non_blocking",
            {"non_blocking": True},
            shows="One wait at the end; the calls still block, for the memory is pageable.",
            truth=PAGEABLE,
            published={"wall_ms": 542.9},
        ),
        Variant(
            "pin_0_threads",
            {"non_blocking_pin": True, "num_threads": 0},
            shows="The calling thread pins each tensor before it is sent.",
            truth=PINNED,
            published={"wall_ms": 658.7},
        ),
        Variant(
            "pin_4_threads",
            {"non_blocking_pin": True, "num_threads": 4},
            shows="Four threads pin, the calling thread sends.",
            truth=PINNED,
            published={"wall_ms": 360.3},
        ),
    ),
    published_on="PyTorch tutorial, GPU not stated",
    faster=(
        ("pin_4_threads", "non_blocking"),
        ("non_blocking", "blocking"),
        ("blocking", "pin_0_threads"),
    ),
    warmup_steps=1,
    recorded_steps=2,
    recorded="an iteration sends 100 of the tensors",
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
