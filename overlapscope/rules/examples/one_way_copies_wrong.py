import torch

layers = [torch.randn(1 << 24, pin_memory=True) for _ in range(8)]
copies = torch.cuda.Stream()
with torch.cuda.stream(copies):
    for layer in layers:
        on_gpu = layer.to("cuda", non_blocking=True)
        layer.copy_(on_gpu.mul_(2.0), non_blocking=True)
torch.cuda.synchronize()
