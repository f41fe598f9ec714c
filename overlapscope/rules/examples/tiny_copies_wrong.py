import torch

samples = [torch.randn(1000, pin_memory=True) for _ in range(200)]
on_gpu = [sample.to("cuda", non_blocking=True) for sample in samples]
