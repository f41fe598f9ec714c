import torch
import os

weight = torch.randn(64, 64, device="cuda")
log = open("/tmp/log.txt", "w")
for step in range(1000):
    weight @ weight
    log.write(f"{step}\n")
    log.flush()
    os.fsync(log.fileno())
