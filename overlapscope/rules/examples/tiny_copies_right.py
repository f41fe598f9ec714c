import torch

samples = torch.randn(200, 1000, pin_memory=True)
on_gpu = samples.to("cuda", non_blocking=True).unbind()
