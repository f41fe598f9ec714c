"""Runs a model on batches that are uploaded one step ahead, on a stream of their own."""

import torch

STEPS = 400
batches = [torch.randn(4096, 2048).pin_memory() for _ in range(4)]
buffers = [torch.empty(4096, 2048, device="cuda") for _ in range(2)]
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4))).cuda()
compute, uploads = torch.cuda.current_stream(), torch.cuda.Stream()
uploaded, used = ([torch.cuda.Event() for _ in buffers] for _ in range(2))


def upload(number: int, stream: torch.cuda.Stream) -> None:
    slot = number % len(buffers)
    with torch.cuda.stream(stream):
        stream.wait_event(used[slot])
        buffers[slot].copy_(batches[number % len(batches)], non_blocking=True)
        uploaded[slot].record(stream)


with torch.no_grad():
    upload(0, uploads)
    for step in range(STEPS):
        upload(step + 1, uploads)
        slot = step % len(buffers)
        compute.wait_event(uploaded[slot])
        model(buffers[slot])
        used[slot].record(compute)
torch.cuda.synchronize()
