"""Advice in the words of what a program is written with, by the ids of rules and interventions. Theirs is in those of
PyTorch; here it is for others. The first line of each stands alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from overlapscope.trace.model import Framework

_PUT_AHEAD: Final = (
    "Call jax.device_put for the next batch before you read this step's result.\n"
    "It returns at once, and the copy runs while the GPU computes. Let an iterator keep one or two batches ahead: a "
    "collections.deque of what jax.device_put returns. Nothing in between may wait: no float(), np.asarray(), print() "
    "or block_until_ready()."
)
_READ_LATE: Final = (
    "Read results less often: no float(), np.asarray(), print() or block_until_ready() in the loop.\n"
    "Keep losses and metrics as jax.Array and read them every so many steps, or one step later: x.copy_to_host_async() "
    "starts the download and does not wait. Instead of Python branches on values, use jnp.where or jax.lax.cond inside "
    "jax.jit."
)
_SCHEDULER: Final = "--xla_gpu_enable_latency_hiding_scheduler=true in XLA_FLAGS"
_ONE_FUNCTION: Final = (
    "Put the whole step into one jax.jit.\n"
    "Each operation outside of it is a launch of its own. Use jax.lax.scan or jax.lax.fori_loop for loops inside, and "
    "join small jitted functions. XLA runs a compiled function as CUDA graphs (command buffers) where it can."
)

_JAX: Final = {
    "allocator-stall": "Let XLA keep GPU memory to itself: leave XLA_PYTHON_CLIENT_PREALLOCATE on.\n"
    "Do not set XLA_PYTHON_CLIENT_ALLOCATOR=platform, which asks the driver each time. Donate what a step does not "
    "need any more (jax.jit with donate_argnums), so that less memory is needed.",
    "blocking-copy": "Upload with jax.device_put, which does not wait, and read downloads a step later.\n"
    "x.copy_to_host_async() starts a download; np.asarray(x) finds it done when it is called later.",
    "copy-on-compute-stream": "Copy with jax.device_put outside the compiled function, one step ahead.\n"
    "XLA copies on a stream of its own then. Copies inside a compiled function (memory kind pinned_host) run beside "
    f"compute only if XLA schedules them so: set {_SCHEDULER}.",
    "data-loading": "Load batches in other processes, ahead of their use (Grain, tf.data or a DataLoader's workers).\n"
    "Call jax.device_put for the next batch before the host waits for this step's result.",
    "exposed-communication": "Let XLA run collectives beside compute.\n"
    f"Set {_SCHEDULER}. --xla_gpu_all_reduce_combine_threshold_bytes decides how large a collective becomes: a smaller "
    "one can begin earlier. If one rank is late, balance its work first.",
    "host-compute": "Move that work off the launching thread, or do it while the GPU is busy.\n"
    "A jitted function returns before the GPU has run it, so do the host's work right after calling it. Use other "
    "threads or processes for loading, logging and checkpoints.",
    "host-sync": _READ_LATE,
    "late-prefetch": _PUT_AHEAD,
    "launch-bound": _ONE_FUNCTION,
    "one-way-copies": "Start downloads early: call x.copy_to_host_async() where x is made.\n"
    "Then downloads run while jax.device_put uploads the next batch.",
    "pageable-copy": "Call jax.device_put one or two steps ahead, so that XLA stages a batch while the GPU computes.\n"
    "XLA copies a NumPy array into pinned memory on a thread of its own, and the function that takes the array waits "
    "for that. Let an iterator keep batches ahead (a collections.deque of what jax.device_put returns), make arrays "
    "C-contiguous and of the type that the GPU needs, and read results late. What is uploaded again and again can stay "
    "in pinned memory: jax.device_put with a sharding of memory kind pinned_host.",
    "pin-in-loop": "Let XLA pin the memory: pass NumPy arrays to jax.device_put, one step ahead.\n"
    "It keeps pinned memory and uses it again.",
    "stream-without-work": "Nothing has to be done: XLA chooses the streams.",
    "tiny-copies": "Join small arrays in one NumPy array, and call jax.device_put once.\n"
    "Split it inside the compiled function. Values that do not change can stay on the GPU; values that can be computed "
    "there (jnp.arange, masks) need no copy.",
    "batch-copies": "Join small arrays in one NumPy array, call jax.device_put once, and split it inside jax.jit.",
    "graph": _ONE_FUNCTION,
    "no-sync": _READ_LATE,
    "non-blocking": "Upload with jax.device_put, which does not wait.",
    "prefetch": _PUT_AHEAD,
    "side-stream": "Copy with jax.device_put outside the compiled function: XLA has a stream for that.",
    "two-way": "Start downloads early: call x.copy_to_host_async() where x is made.",
}

_OTHERS: Final[Mapping[Framework, Mapping[str, str]]] = {"jax": _JAX}


def in_words_of(framework: Framework, id: str, advice: str) -> str:
    """The advice of a rule or an intervention; as it gives it where there are no other words for it."""
    return _OTHERS.get(framework, {}).get(id, advice)
