import torch

streams = [torch.cuda.Stream(), torch.cuda.Stream()]
parts = [torch.randn(256, 256, device="cuda") for _ in streams]
torch.cuda.synchronize()
for stream, part in zip(streams, parts):
    with torch.cuda.stream(stream):
        for _ in range(100):
            part @ part
