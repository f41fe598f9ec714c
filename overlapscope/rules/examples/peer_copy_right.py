import torch

first, second = torch.nn.Linear(8192, 8192).to("cuda:0"), torch.nn.Linear(8192, 8192).to("cuda:1")
sending, receiving = torch.cuda.Stream("cuda:0"), torch.cuda.Stream("cuda:1")
for batch in torch.randn(8, 8192, 8192, device="cuda:0"):
    hidden = first(batch)
    sending.wait_stream(torch.cuda.current_stream("cuda:0"))
    with torch.cuda.stream(sending), torch.cuda.stream(receiving):
        moved = hidden.to("cuda:1", non_blocking=True)
    hidden.record_stream(sending)
    torch.cuda.current_stream("cuda:1").wait_stream(receiving)
    moved.record_stream(torch.cuda.current_stream("cuda:1"))
    second(moved)
