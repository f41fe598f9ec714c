import torch

weight = torch.randn(4096, 4096, device="cuda")
samples = torch.randn(1200, 1200)
for _ in range(10):
    weight @ weight
    for _ in range(20):
        samples.square().sum()
torch.cuda.synchronize()
