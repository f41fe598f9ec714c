import torch
import gc

weight = torch.randn(4096, 4096, device="cuda")
vocabulary = [[number] for number in range(2_000_000)]
gc.freeze()
for _ in range(100):
    batch = [[number] for number in range(100_000)]
    weight @ weight
