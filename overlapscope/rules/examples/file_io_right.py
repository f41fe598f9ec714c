import torch

weight = torch.randn(64, 64, device="cuda")
with open("/tmp/log.txt", "w") as log:
    for step in range(1000):
        weight @ weight
        log.write(f"{step}\n")
