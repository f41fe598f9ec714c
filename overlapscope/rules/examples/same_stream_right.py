import torch

batches = [torch.randn(1 << 22, pin_memory=True) for _ in range(10)]
weight = torch.randn(4096, 4096, device="cuda")
copies = torch.cuda.Stream()


def prefetch(batch):
    with torch.cuda.stream(copies):
        return batch.to("cuda", non_blocking=True)


following = prefetch(batches[0])
for number in range(len(batches)):
    torch.cuda.current_stream().wait_stream(copies)
    data = following
    data.record_stream(torch.cuda.current_stream())
    if number + 1 < len(batches):
        following = prefetch(batches[number + 1])
    weight @ weight + data.sum()
