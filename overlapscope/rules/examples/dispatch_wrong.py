import torch

value = torch.ones(256, device="cuda")
for _ in range(300):
    value.add_(1.0)
