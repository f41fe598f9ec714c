import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
gradients = [torch.randn(1 << 24, device="cuda") for _ in range(8)]
weight = torch.randn(4096, 4096, device="cuda")
pending = []
for gradient in gradients:
    pending.append(dist.all_reduce(gradient, async_op=True))
    weight @ weight
for work in pending:
    work.wait()
