import torch

source = torch.randn(1 << 24)
for _ in range(10):
    source.pin_memory().to("cuda", non_blocking=True)
