import torch
import ctypes
import cupy
import numpy as np

count = 1 << 26
memory = cupy.cuda.malloc_managed(4 * count)
on_host = np.ctypeslib.as_array((ctypes.c_float * count).from_address(memory.ptr))
on_gpu = torch.as_tensor(cupy.ndarray(count, cupy.float32, memory), device="cuda")
for number in range(8):
    on_host[:] = number
    cupy.cuda.runtime.memPrefetchAsync(memory.ptr, 4 * count, 0, torch.cuda.current_stream().cuda_stream)
    on_gpu.mul_(2)
    torch.cuda.synchronize()
