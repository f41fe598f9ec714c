import torch

batch = torch.randn(1 << 25, pin_memory=True)
target = torch.empty_like(batch, device="cuda")
weight = torch.randn(4096, 4096, device="cuda")
copies = torch.cuda.Stream()
for _ in range(10):
    weight @ weight
    copies.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(copies):
        target.copy_(batch, non_blocking=True)
    torch.cuda.current_stream().wait_stream(copies)
    target.mul_(2.0)
