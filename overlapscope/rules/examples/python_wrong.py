import torch

weight = torch.randn(4096, 4096, device="cuda")
words = ["some", "text"] * 100_000
for _ in range(10):
    weight @ weight
    torch.cuda.synchronize()
    ids = [hash(word) % 1000 for word in words]
