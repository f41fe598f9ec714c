"""Does a copy run beside compute? A stream of its own and pinned memory, with and without.

A 5 Mi-element tensor goes to the GPU with `non_blocking=True` while another one there is multiplied three times over.
The PyTorch tutorial "A guide on good usage of non_blocking and pin_memory()" names three conditions for the two to run
at once: a free copy engine, another stream than the default one, and page-locked host memory. Here the last two
are switched on and off. Its profiler skips two iterations; ours have run often before they are recorded.

Look at the strip: only with both are copy and kernels in the same slice. From pageable memory the call itself copies,
so the kernels are launched when it is done, whatever the stream. And the copy is long beside the kernels: most
of it stays exposed even then, for want of compute.
"""

from __future__ import annotations

import torch

from overlapscope.plugins.laboratory.experiment import Experiment, Step, Truth, Variant


def prepare(elements: int, streamed: bool, pinned: bool) -> Step:
    source = torch.randn(elements, pin_memory=pinned)
    values = torch.randn(elements, device="cuda")
    compute = torch.cuda.current_stream()
    copies = torch.cuda.Stream() if streamed else compute

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.cuda.stream(copies):
            batch = source.to("cuda", non_blocking=True)
        copied = copies.record_event()
        product = values * values * values
        computed = compute.record_event()
        copied.synchronize()
        computed.synchronize()
        return batch, product

    return step


EXPERIMENT = Experiment(
    name="copy_matrix",
    title="Own stream and pinned memory: which copies run beside compute",
    shows="A copy runs beside compute only from pinned memory and on a stream of its own.",
    sizes={"small": {"elements": 5 << 20}, "paper": {"elements": 5 << 20}},
    prepare=prepare,
    variants=(
        Variant(
            "streamed0_pinned0",
            {"streamed": False, "pinned": False},
            shows="The call blocks and copies; the multiplication is launched afterwards.",
            truth=Truth(
                exposed_copy="pageable-memory",
                hidden_copy_pct=(0.0, 0.5),
                findings=("pageable-memory",),
                no_findings=("overlap-achieved",),
                least_share=0.95,
            ),
        ),
        Variant(
            "streamed0_pinned1",
            {"streamed": False, "pinned": True},
            shows="The call returns at once, but on one stream the multiplication waits for the copy.",
            # All compute comes after the copy on the same stream; the rest of the copy has none to hide under.
            truth=Truth(
                exposed_copy="no-compute",
                hidden_copy_pct=(0.0, 0.5),
                findings=("same-stream",),
                no_findings=("pageable-memory", "overlap-achieved"),
            ),
        ),
        Variant(
            "streamed1_pinned0",
            {"streamed": True, "pinned": False},
            shows="Another stream does not help a call that blocks.",
            # At most the last piece that the driver stages is still being copied when the kernels are launched.
            truth=Truth(
                exposed_copy="pageable-memory",
                hidden_copy_pct=(0.0, 10.0),
                findings=("pageable-memory",),
                least_share=0.95,
            ),
        ),
        Variant(
            "streamed1_pinned1",
            {"streamed": True, "pinned": True},
            shows="The multiplication runs beside the copy, and there is no more to hide it under.",
            truth=Truth(
                exposed_copy="no-compute",
                hidden_copy_pct=(0.5, 100.0),
                findings=("overlap-achieved",),
                no_findings=("pageable-memory", "same-stream", "blocking-copy"),
                least_share=0.9,
            ),
        ),
    ),
    warmup_steps=1,
    recorded_steps=2,
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
