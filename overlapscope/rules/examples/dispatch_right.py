import torch

value = torch.ones(256, device="cuda")
value.add_(1.0)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(300):
        value.add_(1.0)
graph.replay()
