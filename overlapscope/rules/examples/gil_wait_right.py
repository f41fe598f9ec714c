import torch
import multiprocessing


def count() -> None:
    while True:
        sum(range(10_000))


if __name__ == "__main__":
    weight = torch.randn(64, 64, device="cuda")
    multiprocessing.get_context("spawn").Process(target=count, daemon=True).start()
    for _ in range(1000):
        weight @ weight
