"""Advice for programs that don't use PyTorch, or no GPU, by the ids of rules and interventions.

The rules and interventions have the advice for PyTorch on GPUs. The first line of each text can stand alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from overlapscope.catalog.devices import are_no_gpus
from overlapscope.trace.model import Framework, Trace

_PUT_AHEAD: Final = (
    "Call jax.device_put for the next batch before you read this step's result.\n"
    "It returns at once, and the copy runs while the GPU computes. Let an iterator keep one or two batches ahead, in a "
    "collections.deque of arrays from jax.device_put. Don't wait in between: no float(), np.asarray(), print() or "
    "block_until_ready()."
)
_READ_LATE: Final = (
    "Read results less often: no float(), np.asarray(), print() or block_until_ready() in the loop.\n"
    "Keep losses and metrics as jax.Array and read them every few steps, or one step later: x.copy_to_host_async() "
    "starts the download without waiting. Instead of Python branches on values, use jnp.where or jax.lax.cond inside "
    "jax.jit."
)
_SCHEDULER: Final = "--xla_gpu_enable_latency_hiding_scheduler=true in XLA_FLAGS"
_ONE_FUNCTION: Final = (
    "Put the whole step into one jax.jit.\n"
    "Each operation outside of it is a separate launch. Use jax.lax.scan or jax.lax.fori_loop for loops inside, and "
    "join small jitted functions. XLA runs a compiled function as CUDA graphs (command buffers) where it can."
)
_AFTER_CALLS: Final = (
    "Move that work off the launching thread, or do it while the GPU is busy.\n"
    "A jitted function returns before the GPU has run it, so do the host's work right after calling it. Use other "
    "threads or processes for loading, logging and checkpoints."
)

_JAX: Final = {
    "allocation": "Let XLA keep GPU memory to itself: leave XLA_PYTHON_CLIENT_PREALLOCATE on.\n"
    "Do not set XLA_PYTHON_CLIENT_ALLOCATOR=platform, which calls the driver each time. Donate arrays that a step no "
    "longer needs (jax.jit with donate_argnums), to save memory.",
    "blocking-copy": "Upload with jax.device_put, which does not wait, and read downloads a step later.\n"
    "x.copy_to_host_async() starts a download; a later np.asarray(x) does not have to wait for it.",
    "same-stream": "Copy with jax.device_put outside the compiled function, one step ahead.\n"
    "XLA then copies on a separate stream. Copies inside a compiled function (memory kind pinned_host) run beside "
    f"compute only if XLA schedules them that way: set {_SCHEDULER}.",
    "data-loading": "Load batches in other processes, ahead of their use (Grain, tf.data).\n"
    "Call jax.device_put for the next batch before the host waits for this step's result.",
    "device-copy": "Let XLA reuse memory: donate arrays that a step replaces (jax.jit with donate_argnums).\n"
    "Without donation, an update of one slice copies the whole array. Copies between compiled functions go away if "
    "they are joined in one jax.jit.",
    "dispatch": _ONE_FUNCTION,
    "cpu-ops": _AFTER_CALLS,
    "python": _AFTER_CALLS,
    "exposed-comm": "Let XLA run collectives beside compute.\n"
    f"Set {_SCHEDULER}. --xla_gpu_all_reduce_combine_threshold_bytes sets the size of a collective: a smaller one "
    "can begin earlier. If one rank is late, balance its work first.",
    "host-sync": _READ_LATE,
    "late-prefetch": _PUT_AHEAD,
    "one-way-copies": "Start downloads early: call x.copy_to_host_async() right after computing x.\n"
    "Then downloads run while jax.device_put uploads the next batch.",
    "pageable-memory": "Call jax.device_put one or two steps ahead, so that XLA stages a batch during compute.\n"
    "XLA copies a NumPy array into pinned memory on a separate thread, and the function that takes the array waits for "
    "it. Let an iterator keep batches ahead (in a collections.deque of arrays from jax.device_put), make arrays "
    "C-contiguous and of the type that the GPU needs, and read results late. Data that is uploaded repeatedly can stay "
    "in pinned memory: jax.device_put with a sharding of memory kind pinned_host.",
    "pin-in-loop": "Let XLA pin the memory: pass NumPy arrays to jax.device_put, one step ahead.\n"
    "XLA keeps and reuses pinned memory.",
    "peer-copy": "Shard arrays so that less of them changes its GPU (jax.sharding).\n"
    f"XLA runs copies between GPUs beside compute only if it schedules them that way: set {_SCHEDULER}.",
    "stream-without-work": "There is nothing to do: XLA chooses the streams.",
    "tiny-copies": "Join small arrays in one NumPy array, and call jax.device_put once.\n"
    "Split it inside the compiled function. Values that do not change can stay on the GPU; values that can be computed "
    "there (jnp.arange, masks) need no copy.",
    "batch-copies": "Join small arrays in one NumPy array, call jax.device_put once, and split it inside jax.jit.",
    "graph": _ONE_FUNCTION,
    "no-sync": _READ_LATE,
    "faster-loader": "Load batches in other processes, ahead of their use.",
    "non-blocking": "Upload with jax.device_put, which does not wait.",
    "pin": _PUT_AHEAD,
    "prefetch": _PUT_AHEAD,
    "side-stream": "Copy with jax.device_put outside the compiled function: XLA uses a separate stream for it.",
    "two-way": "Start downloads early: call x.copy_to_host_async() right after computing x.",
}

_UPLOAD_AHEAD: Final = (
    "Issue the copy of the next step's input before you launch this step's kernels.\n"
    "Call cudaMemcpyAsync from pinned memory on a stream made with cudaStreamCreateWithFlags(&copies, "
    "cudaStreamNonBlocking), into a second buffer. Record an event after the copy, and call cudaStreamWaitEvent on "
    "the compute stream just before the first kernel that reads the buffer. Let the copy wait for an event after the "
    "last kernel that used the buffer, not for the whole compute stream."
)
_STREAMS: Final = (
    "Issue copies on separate streams, one for each direction.\n"
    "Make them with cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking): the legacy default stream waits for "
    "all others. Join them with compute by cudaEventRecord and cudaStreamWaitEvent. Alternate between two buffers to "
    "keep the waits short."
)
_WAIT_LESS: Final = (
    "Wait less often for the GPU: no cudaDeviceSynchronize or cudaStreamSynchronize in the loop.\n"
    "Use cudaStreamWaitEvent to order streams, so that the stream waits instead of the host. Copy values that the host "
    "must read to pinned memory with cudaMemcpyAsync, record an event, and read them one step later."
)
_GRAPH: Final = (
    "Launch less often: capture the step in a CUDA graph.\n"
    "Record it once between cudaStreamBeginCapture and cudaStreamEndCapture, call cudaGraphInstantiate, and replay it "
    "with one cudaGraphLaunch a step. Join small kernels."
)
_PIN: Final = (
    "Pin the host memory once, outside the loop.\n"
    "Allocate it with cudaMallocHost, or pin existing memory with cudaHostRegister, and copy with cudaMemcpyAsync. Do "
    "not pin right before each copy: that costs more than it saves."
)
_ASYNC: Final = (
    "Copy with cudaMemcpyAsync from and to pinned memory, instead of cudaMemcpy.\n"
    "Kernels on the same stream see the uploaded data. After a download, synchronize an event before the host "
    "reads the buffer, as late as possible."
)
_JOIN: Final = (
    "Join small copies in one pinned buffer, and copy that once.\n"
    "Place the pieces one after another, and pass offsets to the kernels. Values that do not change can stay on the "
    "device."
)
_OTHER_THREAD: Final = (
    "Move that work off the launching thread, or do it while the GPU is busy.\n"
    "Use another thread for input, logging and checkpoints, or do the work right after launching a long stretch of GPU "
    "work."
)

_CUDA: Final = {
    "allocation": "Allocate GPU memory once, before the loop.\n"
    "cudaMalloc and cudaFree call the driver, and cudaFree waits for the device. Reuse buffers, or take memory from "
    "a pool with cudaMallocAsync and raise cudaMemPoolAttrReleaseThreshold, so that it is kept.",
    "blocking-copy": _ASYNC,
    "same-stream": _STREAMS,
    "data-loading": "Load the next input on another thread, ahead of its use.\n"
    "Fill a pinned buffer there while the GPU computes.",
    "device-copy": "Copy less within the GPU: write results where they are needed.\n"
    "Pass the kernel a pointer and a pitch into the final buffer, or exchange two buffers instead of copying one to "
    "the other.",
    "dispatch": _GRAPH,
    "cpu-ops": _OTHER_THREAD,
    "python": _OTHER_THREAD,
    "exposed-comm": "Start collectives earlier and in smaller parts, so that compute hides them.\n"
    "Call NCCL on a separate stream as soon as a part of the data is ready, and wait for its event just before the "
    "data is used. If one rank is late, balance its work first.",
    "host-sync": _WAIT_LESS,
    "late-prefetch": _UPLOAD_AHEAD,
    "pageable-memory": _PIN,
    "peer-copy": "Copy with cudaMemcpyPeerAsync on a stream of its own, and let the consumer wait for an event.\n"
    "Call cudaDeviceEnablePeerAccess once for each pair of GPUs; without it, the copy goes through the host.",
    "pin-in-loop": "Pin once, outside the loop, and reuse that buffer.\n"
    "cudaMallocHost, cudaHostAlloc and cudaHostRegister take longer than most copies.",
    "stream-without-work": "Check that the work meant for this stream runs there, or drop the stream.\n"
    "Pass the stream to each kernel launch and to cudaMemcpyAsync. Without work, its waits only order work that is "
    "in order anyway.",
    "tiny-copies": _JOIN,
    "batch-copies": _JOIN,
    "faster-loader": "Load the next input on another thread, ahead of its use.",
    "graph": _GRAPH,
    "no-sync": _WAIT_LESS,
    "non-blocking": _ASYNC,
    "pin": _PIN,
    "prefetch": _UPLOAD_AHEAD,
    "side-stream": _STREAMS,
    "two-way": "Give downloads (D2H) a separate stream.\n"
    "Let it wait with cudaStreamWaitEvent for an event after the kernel that computes the data.",
}

# PyTorch's own compiler, graphs and fused optimizers may not support the device. Its vendor's differ.
_FEWER_KERNELS: Final = (
    "Launch fewer kernels: replace several small ops by one that does the same.\n"
    "The device's extension of PyTorch may have such ops, fused optimizers and a compiler of its own. Larger batches "
    "and lower precision help only if there are fewer kernels or less Python."
)
_NOT_GPUS: Final = {
    "dispatch": _FEWER_KERNELS,
    "graph": _FEWER_KERNELS,
    "fused": "Use a fused optimizer of the device's extension of PyTorch, if it has one.",
    "python": "Run less Python between launches, or do it while the device is busy.\n"
    "Work of its own (metrics, tokenization, logging, checkpoints) fits a DataLoader worker, another thread or "
    "process, or the time right after launching a long stretch of work on the device.",
}

OTHERS: Final[Mapping[Framework, Mapping[str, str]]] = {"jax": _JAX, "cuda": _CUDA}
NAMES: Final[Mapping[Framework, str]] = {"jax": "JAX", "cuda": "CUDA C++"}


def for_program(trace: Trace, id: str, advice: str) -> str:
    """Return the advice of a rule or an intervention for the devices and in the words of a trace's framework."""
    if are_no_gpus(trace.device_names.values()):
        advice = _NOT_GPUS.get(id, advice)
    return in_words_of(trace.framework, id, advice)


def in_words_of(framework: Framework, id: str, advice: str) -> str:
    """Return the advice of a rule or an intervention in the words of a framework, or unchanged if there are none."""
    return OTHERS.get(framework, {}).get(id, advice)
