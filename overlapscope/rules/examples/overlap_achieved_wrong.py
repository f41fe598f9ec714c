import torch

batch = torch.randn(1 << 24, pin_memory=True)
weight = torch.randn(8192, 8192, device="cuda")
for _ in range(10):
    batch.to("cuda", non_blocking=True)
    weight @ weight
