import torch

batch = torch.randn(64, 3, 224, 224, pin_memory=True)
for _ in range(10):
    images = batch.to("cuda", non_blocking=True)
    images.square().sum()
