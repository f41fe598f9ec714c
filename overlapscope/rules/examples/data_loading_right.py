import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    weight = torch.randn(64, 64, device="cuda")
    data = TensorDataset(torch.randn(10_000, 64))
    loader = DataLoader(data, batch_size=256, num_workers=4, persistent_workers=True, pin_memory=True)
    for (batch,) in loader:
        batch.cuda(non_blocking=True) @ weight
