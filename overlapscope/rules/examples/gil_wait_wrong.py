import torch
import threading

weight = torch.randn(64, 64, device="cuda")


def count() -> None:
    while True:
        sum(range(10_000))


threading.Thread(target=count, daemon=True).start()
for _ in range(1000):
    weight @ weight
