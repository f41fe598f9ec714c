import torch

torch.set_num_threads(64)
batch = torch.randn(1 << 26, pin_memory=True)
busy = torch.randn(1 << 28)
for _ in range(10):
    target = batch.to("cuda", non_blocking=True)
    busy.mul_(1.0)
