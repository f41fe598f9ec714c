import torch

weight = torch.randn(4096, 4096, device="cuda")
for _ in range(10):
    block = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    weight @ weight
    del block
    torch.cuda.empty_cache()
