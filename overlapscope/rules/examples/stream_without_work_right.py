import torch

model = torch.nn.Linear(4096, 4096).cuda()
batch = torch.randn(4096, 4096, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    loss = model(batch).square().mean()
    loss.backward()
torch.cuda.current_stream().wait_stream(side)
