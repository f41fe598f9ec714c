import torch

source = torch.randn(1 << 24)
buffer = torch.empty_like(source, pin_memory=True)
done = torch.cuda.Event()
for _ in range(10):
    done.synchronize()
    buffer.copy_(source)
    buffer.to("cuda", non_blocking=True)
    done.record()
