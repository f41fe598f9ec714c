import torch

layers = [torch.randn(1 << 24, pin_memory=True) for _ in range(8)]
uploads, downloads = torch.cuda.Stream(), torch.cuda.Stream()
for layer in layers:
    with torch.cuda.stream(uploads):
        on_gpu = layer.to("cuda", non_blocking=True).mul_(2.0)
    downloads.wait_stream(uploads)
    with torch.cuda.stream(downloads):
        layer.copy_(on_gpu, non_blocking=True)
    on_gpu.record_stream(downloads)
torch.cuda.synchronize()
