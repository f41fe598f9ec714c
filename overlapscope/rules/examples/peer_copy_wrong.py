import torch

first, second = torch.nn.Linear(8192, 8192).to("cuda:0"), torch.nn.Linear(8192, 8192).to("cuda:1")
for batch in torch.randn(8, 8192, 8192, device="cuda:0"):
    second(first(batch).to("cuda:1"))
