import torch
from torch.utils.data import DataLoader, TensorDataset

weight = torch.randn(64, 64, device="cuda")
data = TensorDataset(torch.randn(10_000, 64))
for (batch,) in DataLoader(data, batch_size=256):
    batch.cuda() @ weight
