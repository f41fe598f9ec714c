import torch

batch = torch.randn(1 << 25, pin_memory=True)
targets = [torch.empty_like(batch, device="cuda") for _ in range(2)]
used = [torch.cuda.Event() for _ in range(2)]
weight = torch.randn(4096, 4096, device="cuda")
copies = torch.cuda.Stream()
for step in range(10):
    slot = step % 2
    copies.wait_event(used[slot])
    with torch.cuda.stream(copies):
        targets[slot].copy_(batch, non_blocking=True)
    weight @ weight
    torch.cuda.current_stream().wait_stream(copies)
    targets[slot].mul_(2.0)
    used[slot].record()
