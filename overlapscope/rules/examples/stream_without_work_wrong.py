import torch

model = torch.nn.Linear(4096, 4096).cuda()
batch = torch.randn(4096, 4096, device="cuda")
side = torch.cuda.Stream()
loss = model(batch).square().mean()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    loss.backward()
torch.cuda.current_stream().wait_stream(side)
