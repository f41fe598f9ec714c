"""Meaning of the names of GPU ops, and of CPU ops and ranges on the host. No other module interprets names for this.

The functions are pure. Call them once for each distinct name, not for each event.

The facts come from kineto's sources: `memcpyKindString` and `memoryKindString` (`cupti_strings.cpp`) for CUDA,
`getGpuActivityKindString` (`RocprofActivity_inl.h`) for ROCm, `memcpyName` (`plugin/xpupti`) for XPU, and
`ActivityType.h` for categories. The first releases of kineto wrote the categories `Kernel`, `Memcpy`, `Memset`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from overlapscope.trace.model import Kind, Memory

MTIA = "mtia_ccp_events"
"""Category of everything that the streams of Meta's MTIA do."""
_KERNEL = frozenset({"kernel", "concurrent_kernel", MTIA})
_COPY = frozenset({"gpu_memcpy", "memcpy"})
_FILL = frozenset({"gpu_memset", "memset"})

MTIA_COPY = "dma_request"
"""Name of each copy of an MTIA; an argument states its direction."""
_STATED_DIRECTION = re.compile(r"(HOST|DEVICE)_TO_(HOST|DEVICE)")
SIGNALS = frozenset({"event_wait", "event_record"})
"""Names of waits and signals of streams that may be in a category of GPU ops."""

GPU_CATEGORIES = _KERNEL | _COPY | _FILL
"""Lower-case categories of events that are GPU ops."""

_MEMORY = {
    "pageable": Memory.PAGEABLE,
    "pinned": Memory.PINNED,
    "device": Memory.DEVICE,
    "device static": Memory.DEVICE,
    "array": Memory.ARRAY,
    "managed": Memory.MANAGED,
    "managed static": Memory.MANAGED,
    "shared": Memory.MANAGED,
}
_ON_HOST = frozenset({Memory.PAGEABLE, Memory.PINNED})
_ON_DEVICE = frozenset({Memory.DEVICE, Memory.ARRAY})

# "H", "M" (XPU: system memory of unknown kind) and "A" (a CUDA array, which lives on the device).
_DIRECTION = {
    **dict.fromkeys(("htod", "htoa", "h2d", "m2d"), Kind.H2D),
    **dict.fromkeys(("dtoh", "atoh", "d2h", "d2m"), Kind.D2H),
    "ptop": Kind.P2P,
}
_KNOWN_DIRECTION = re.compile(r"[A-Z](?:to|2)[A-Z]", re.IGNORECASE)
_COPY_NAME = re.compile(r"\s*(?:memcpy|copy)\s+(\S+)", re.IGNORECASE)
_FILL_NAME = re.compile(r"\s*(?:memset|fill)", re.IGNORECASE)
_SIDES = re.compile(r"\((.+?)\s*->\s*(.+)\)\s*$")

# ROCm 7.1 records copies as kernels, under the name of the transfer or of the blit kernel that does it.
_TRANSFER = re.compile(r"(?:MEMORY_COPY_|Copy)(Host|Device)_?To_?(Host|Device)$", re.IGNORECASE)
_TRANSFERS = {("host", "device"): Kind.H2D, ("device", "host"): Kind.D2H}
_BLIT_COPY = re.compile(r"__amd_rocclr_copy")
"""Kernels by which ROCm copies, within the device or between it and the host."""
_BLIT_FILL = re.compile(r"__amd_rocclr_fill|FillBuffer$")

XLA_WAIT = re.compile(
    r"np\.asarray\(jax\.Array\)|block_until_ready"
    r"|\w*(?:Buffer|Future|Array|Event)\w*::(?:Await|BlockUntilReady|BlockHostUntilReady)"
)
"""Marks of JAX and PJRT in which the host waits for the device, without a call that XLA's profiler would record."""

XLA_STAGES = frozenset({"H2D Dispatch", "D2H Copy From Staging Buffer"})
"""Marks of PJRT in which it copies an array into or out of pinned memory, and changes the array's layout."""

XLA_LAUNCH = re.compile(r".*LoadedExecutable::Execute\w*")
"""Marks of PJRT around the launch of a compiled function, which waits for arrays that are being staged."""


def kind(category: str, name: str) -> Kind:
    """Return the kind of a GPU op.

    `category` is the event's `cat` in any case. An op of any other category counts as a kernel.
    """
    category, name = category.lower(), name[:MAX_EXAMINED_CHARACTERS]
    if category in _FILL or (category == MTIA and name == MTIA_COPY):
        return Kind.OTHER
    transfer = _TRANSFER.match(name)
    if transfer is not None:
        return _TRANSFERS.get((transfer[1].lower(), transfer[2].lower()), Kind.OTHER)
    if category in _COPY or (category == MTIA and _COPY_NAME.match(name)):
        return _copy_kind(name)
    if _BLIT_COPY.match(name) or _BLIT_FILL.match(name):
        return Kind.OTHER
    return Kind.COMM if communicates(name) else Kind.COMPUTE


def with_direction(name: str, direction: str) -> str:
    """Return the name of a copy whose direction an argument states, in CUDA's spelling if the direction is known."""
    sides = _STATED_DIRECTION.fullmatch(direction)
    return f"Memcpy {sides[1][0]}to{sides[2][0]} ({name})" if sides else name


def is_work(category: str, name: str) -> bool:
    """Return whether an event of a GPU op's category is work, and no wait or signal of a stream."""
    return category.lower() != MTIA or name not in SIGNALS


def memory_kinds(category: str, name: str) -> tuple[Memory, Memory]:
    """Return the memory that a copy reads and writes: (source, target). Both are UNKNOWN for other ops.

    `Host` (ROCm) and `MEMORY(Unknown)` (XPU) mean neither pinned nor pageable, so they are UNKNOWN.
    """
    # A search in a long name without an arrow takes time quadratic in its length.
    if category.lower() not in _COPY or "->" not in name:
        return Memory.UNKNOWN, Memory.UNKNOWN
    sides = _SIDES.search(name[:MAX_EXAMINED_CHARACTERS])
    if sides is None:
        return Memory.UNKNOWN, Memory.UNKNOWN
    source, target = (_MEMORY.get(side.strip().lower(), Memory.UNKNOWN) for side in sides.groups())
    return source, target


def _begins_with(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a name begins with a pattern."""
    compiled = re.compile(pattern)
    return lambda name: compiled.match(name) is not None


is_migration = _begins_with(r"Migration\b")
"""Selects page migrations of managed memory among ops of `Kind.OTHER`, as the reader of Nsight Systems names them."""
is_migration_to_host = _begins_with(r"Migration DtoH\b")
"""Selects page migrations to the host, which has usually touched the page."""
states_device_copy = _begins_with(r"(?:hip|cu|cuda)Memcpy\w*(?:DtoD|Peer)")
"""Selects calls whose name says that they copy within or between devices: `hipMemcpyDtoDAsync`."""
states_peer_copy = _begins_with(r"(?:hip|cu|cuda)Memcpy\w*Peer")
"""Selects calls whose name says that they copy between devices: `hipMemcpyPeerAsync`."""


def is_fill(name: str) -> bool:
    """Return whether the name of an op of `Kind.OTHER` is that of a memset."""
    return _FILL_NAME.match(name) is not None or _BLIT_FILL.match(name) is not None


def hides_direction(name: str) -> bool:
    """Return whether an op of `Kind.OTHER` may, by its name, be a copy between host and device."""
    name = name[:MAX_EXAMINED_CHARACTERS]
    direction = _COPY_NAME.match(name)
    if _BLIT_COPY.match(name):
        return True
    if is_migration(name) or is_fill(name) or _TRANSFER.match(name):
        return False
    sides = set(memory_kinds("gpu_memcpy", name))
    stated = direction is not None and _KNOWN_DIRECTION.fullmatch(direction[1])
    return not stated and not sides <= _ON_HOST and not sides <= _ON_DEVICE


def _copy_kind(name: str) -> Kind:
    direction = _COPY_NAME.match(name)
    if direction is not None and _KNOWN_DIRECTION.fullmatch(direction[1]):
        return _DIRECTION.get(direction[1].lower(), Kind.OTHER)
    # kineto writes `<unknown>` for an unknown direction; the memory kinds may still show it.
    source, target = memory_kinds("gpu_memcpy", name)
    if source in _ON_HOST and target in _ON_DEVICE:
        return Kind.H2D
    return Kind.D2H if source in _ON_DEVICE and target in _ON_HOST else Kind.OTHER


# -- Short names ---

_COLLECTIVE_RANGE = re.compile(r"nccl:(?!coalesced\b)(\w+)")
"""PyTorch's range around the launch of a collective. `nccl:send 0->1` and `nccl:coalesced` are not matched: the first
is point-to-point, and the second may be anything."""


def collective_of_range(name: str) -> str:
    """Return the collective that a range on the host launches: `all_to_all` of `nccl:all_to_all`; empty for others."""
    match = _COLLECTIVE_RANGE.fullmatch(name)
    return match[1] if match is not None else ""


def collective_of_kernel(name: str) -> str:
    """Return a communication kernel's name with its namespaces, but without template arguments and parameters."""
    return base_name(name) or name


# These templates loop over a kernel's data; one of their arguments is the operation.
_LOOPS = re.compile(r"\w*elementwise_kernel\w*|reduce_kernel|multi_tensor_apply_kernel|(Kernel\d?|device_kernel)")
_DOES = re.compile(
    r"\b(?!gpu_kernel_impl|[AB]UnaryFunctor|BinaryFunctor)"
    r"(\w*(?:[Ff]unctor|Ops\b|_kernel_|KernelImpl)\w*|cutlass_\d+_\w+)"
)


def short_kernel(name: str) -> str:
    """Return a kernel's name without return type, namespaces, parameters and template arguments.

    `ncclDevKernel_Generic` is an example. A loop over a function keeps it:
    `vectorized_elementwise_kernel<FillFunctor>`. A name of another form stays as it is.
    """
    outer, inner, depth = "", "", 0
    for character in name.removeprefix("void ").replace("(anonymous namespace)::", ""):
        if character == "(" and not depth:
            break
        depth += (character == "<") - (character == ">")
        if depth:
            inner += character
        elif character != ">":
            outer += character
    base = outer.rpartition("::")[2].strip()
    loop, does = _LOOPS.fullmatch(base), _DOES.search(inner)
    if loop is None or does is None:
        return base or name
    return does[1] if loop[1] else f"{base}<{does[1]}>"


_NAMESPACE = re.compile(r"(?:\(anonymous namespace\)|\b[A-Za-z_]\w*)::")


def kernel_names(names: Iterable[str]) -> dict[str, str]:
    """Return the short name of each kernel. Where several share it, the name without namespaces or all of it.

    The return type, which is void, is always left out.
    """
    full = {name: name.removeprefix("void ") for name in names}
    forms = [(short_kernel(name), _NAMESPACE.sub("", shown), shown) for name, shown in full.items()]
    counts = [Counter(column) for column in zip(*forms, strict=True)]
    return {
        name: next((text for text, count in zip(texts, counts, strict=True) if count[text] == 1), texts[-1])
        for name, texts in zip(full, forms, strict=True)
    }


# -- Communication -----------------------------------------------------------------------------------
# The names come from the sources of the libraries. They are compared without return type, template arguments and
# parameters, in lower case, with an underscore between words: `moeA2ADispatchKernel` is `moe_a2a_dispatch_kernel`.

FAMILIES: Final[dict[str, str]] = {
    "NCCL, RCCL, Meta's torchcomms": r"(?<![a-z]) nccl_? (?: (?:sym[a-z]*_?)? (?:dev_?)? kernel"
    r" | all|reduce|broadcast|send|recv | ep_ ) | (?<![a-z]) rccl | msccl",
    "oneCCL": r"oneccl | one_ccl | oneapi::ccl | (?<![a-z]) ccl::",
    "HCCL": r"(?<![a-z]) hccl | (?<![a-z]) hcom_",
    "NVSHMEM, rocSHMEM, Intel SHMEM, MoRI": r"nvshmem | roc_?shmem | (?<![a-z]) ishmem | mori_shmem",
    "DeepEP and its forks, under any namespace": r"(?<![a-z]) (?:inter|intra)node (?:_ll)? :: | deep_ep::",
    "NIXL, UCX": r"(?<![a-z]) (?:nixl | ucx | uc[pt]) _",
    "Transformer Engine": r"userbuffers_",
    "PyTorch": r"symmetric_memory:: | (?<![a-z]) symm_mem(?:ory)? (?:::|_)",
    "vLLM, SGLang, aiter": r"cross_device_(?:reduce|store) | quick_?reduce::",
    "FlashInfer": r"(?<![a-z]) ipc_(?:topo_)?(?:rsag|tp)\d*_",
    # A reduction across the threads of a block or warp is called an all-reduce as well, and is compute.
    "collectives written by hand": r"(?<!warp)(?<!block)(?<!quad)(?<!thread)(?<!warp_)(?<!block_)(?<!quad_)(?<!thread_)"
    r" all_?reduce | all_?gather | reduce_?scatter | all_?(?:to|2)_?all | (?<![a-z0-9]) a2av? (?![a-z0-9])",
    "all-to-all of experts (TensorRT-LLM, pplx, MoRI, HybridEP)": r"(?<![a-z]) (?:hybrid_)? ep (?:_|::|\d)"
    r" (?:\w*_)? (?:dispatch|combine|notify|send|recv|sync|barrier) (?![a-z])",
    "point to point over RDMA": r"(?<![a-z]) (?:rdma|ibgda) (?![a-z])"
    r" .* (?:dispatch|combine|send|recv|put|get) (?![a-z])",
}
"""Regular expressions of the names of communication kernels, by library. It is the only table of them."""

# torch.compile names a fused kernel after the ops it replaces, a collective's output among them. The others are steps
# around a transfer that move nothing between devices: of PyTorch, DeepEP, MoRI, TensorRT-LLM and torchao.
_OTHER: Final = (
    r"^triton_[a-z]{2,4}_fused | ^at::native:: | gemm | check_for_na_?n"
    r" | (?<![a-z]) (?:pre_?compute|compute|prepare|sanitize|convert|count) (?![a-z])"
    r" | (?<![a-z]) (?:layout|offsets?|indices|epilogue) (?![a-z])"
)
# A name alone doesn't show that these communicate. Copies of rows to experts and split-K reductions within a device
# are called dispatch and combine as well.
_LOOKS: Final = (
    r"(?<![a-z]) (?:send|recv|receive|send_?recv) (?![a-z]) | cross_(?:device|rank|gpu) | multimem"
    r" | (?<![a-z]) (?:peer|remote|p2p) (?![a-z])"
    r" | (?<![a-z]) (?:moe|experts?|tokens?|ranks?) (?![a-z]) .* (?<![a-z]) (?:dispatch|combine) (?![a-z])"
    r" | (?<![a-z]) (?:dispatch|combine) _ .* (?<![a-z]) (?:moe|experts?|tokens?|ranks?) (?![a-z])"
    r" | (?: ^ | ::) (?:dispatch|combine|notify) (?:_kernel)? (?:_impl)? $"
)
_OPS: Final = r"record_param_comms | (?: _?c10d\w* | symm_mem ) ::.* | nccl:.*"
_COLLECTIVE_OPS: Final = r".* (?:all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all|a2a) .*"
_MORE_THAN_COMMUNICATION: Final = (
    r"matmul | gemm | (?<![a-z]) (?:mm|scaled) (?![a-z]) | linear | copy | backward | wait"
)

MAX_EXAMINED_CHARACTERS: Final = 2048
"""Number of characters of a name to examine. The template arguments, which may be long, come after them."""


_FAMILY: Final = " | ".join(FAMILIES.values())
_BOUNDARY: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z]{2})")
_NESTED: Final = re.compile(r"_ZN?K?(?=\d)")
_PART: Final = re.compile(r"\d+")


def base_name(name: str) -> str:
    """Return a kernel's qualified name without return type, template arguments and parameters."""
    name = name[:MAX_EXAMINED_CHARACTERS].replace("(anonymous namespace)::", "").removeprefix("void ")
    mangled = _NESTED.match(name)
    return _demangled(name, mangled.end()) if mangled else re.split(r"[<(]", name, maxsplit=1)[0]


def _demangled(name: str, at: int) -> str:
    """Return the parts of a mangled name (Itanium C++ ABI) up to its template arguments."""
    parts = []
    while length := _PART.match(name, at):
        at = length.end() + int(length[0])
        parts.append(name[length.end() : at])
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N_"))


@lru_cache(maxsize=1 << 14)
def _words(name: str) -> str:
    return _BOUNDARY.sub("_", base_name(name)).lower()


@lru_cache(maxsize=1 << 14)
def communicates(kernel: str) -> bool:
    """Return whether a kernel communicates between devices, judged by its name."""
    return may_communicate(kernel) and _has(_FAMILY, _words(kernel))


@lru_cache(maxsize=1 << 14)
def looks_like_communication(kernel: str) -> bool:
    """Return whether a kernel may communicate, although its name alone doesn't show it."""
    return may_communicate(kernel) and _has(_LOOKS, _words(kernel))


def may_communicate(kernel: str) -> bool:
    """Return whether a kernel that an op launches to communicate does so, unless its name shows something else."""
    return not _has(_OTHER, _words(kernel))


def _has(pattern: str, text: str) -> bool:
    """Return whether a pattern matches anywhere in a text. It is compiled then, as few recordings need all of them."""
    return re.search(pattern, text, re.VERBOSE) is not None


def op_communicates(op: str) -> bool:
    """Return whether an op or a range on the host does nothing but communicate."""
    return re.fullmatch(_OPS, op, re.VERBOSE) is not None and not _has(_MORE_THAN_COMMUNICATION, op)


def names_collective(op: str) -> bool:
    """Return whether an op on the host is named after a collective. It may do more, such as converting data."""
    return re.fullmatch(_COLLECTIVE_OPS, _BOUNDARY.sub("_", op).lower(), re.VERBOSE) is not None


# -- Ops and ranges on the host ----------------------------------------------------------------------
# PyTorch records ops by their schema (`aten::add`), nodes of the backward pass (`AddmmBackward0`) and Python functions
# by their class (`CheckpointFunction`).

OPTIMIZER_STEP = "Optimizer.step#"
"""Beginning of the names of torch's ranges around an optimizer's step (torch/optim/optimizer.py)."""
OPTIMIZER_ZERO_GRAD = "Optimizer.zero_grad#"

is_operator = _begins_with(r"\w+::|\w*Backward\d*$|autograd::")
"""Selects names of operators of PyTorch, rather than of a library's or the system's calls."""
allocates = _begins_with(r"(?:aten::(new_)?empty\w*|aten::resize\w*|aten::_efficientzerotensor)\Z")
"""Selects ops that allocate memory, among those that launch nothing."""
is_engine = _begins_with(r"autograd::engine::|torch::autograd::|(torch::)?\w+Backward\d+$")
"""Selects nodes of the backward pass in C++, and autograd's engine around a node."""
is_reducer = _begins_with(r".*distributed(\.ddp)?(\.|::)reducer::")
"""Selects ops of the reducer with which DistributedDataParallel joins gradients."""
is_collective_range = _begins_with(r"(?:gloo|mpi|ucc|xccl):\w+\Z")
"""Selects ranges that are the work of a collective on the host, on a thread of its backend."""
_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional"})
"""Namespaces of collectives."""
_BOOKKEEPING = _COLLECTIVES | {"autograd", "inductor", "prim", "prims", "profiler", "torch"}
"""Namespaces of ops that arrange other work."""
_METADATA = re.compile(
    r"""
    (_?reshape\w* | _?unsafe_view | view\w* | expand\w* | (un)?squeeze\w* | (un)?flatten | transpose\w* | permute
    | t_? | swapaxes | swapdims | movedim | moveaxis | numpy_T | matrix_H | mT | mH | adjoint | diagonal | unfold
    | unbind | slice | select | narrow | split\w* | (tensor|[hvd])_?split | chunk | _?as_strided\w* | alias
    | detach_? | real | imag | empty\w* | new_empty\w* | resize\w* | set_ | _efficientzerotensor
    | to | type_as | contiguous | lift_fresh | resolve_(conj|neg) | conj | _conj | _neg_view | is_\w+ | result_type
    | can_cast | _has_compatible_shallow_copy_type | item | _local_scalar_dense | record_stream | requires_grad_
    | size | stride | numel | dim | sym_\w+ | output_nr | _version | retain_grad | _cudnn_\w* | _use_\w+ | _nested\w*
    | broadcast_tensors | meshgrid | _debug_has_internal_overlap | _fw_primal | _make_dual | set_data | data
    )$""",
    re.VERBOSE,
)
"""Names in `aten` of ops that make views, allocate memory or read properties of a tensor."""


def starts_collective(name: str) -> bool:
    """Return whether an op is a collective, or starts one."""
    return name.partition("::")[0] in _COLLECTIVES


def may_run_python(name: str) -> bool:
    """Return whether an op's name is that of a Python function, such as `CheckpointFunction`, rather than of an op."""
    # CANN and torch_npu's queue of tasks write `AscendCL@aclnnMuls` and `Dequeue@aclnnMuls`.
    return "::" not in name and "@" not in name and not is_engine(name)


def works(name: str) -> bool:
    """Return whether an op that launches nothing computes on the CPU, rather than arranging other work."""
    namespace, separator, short = name.partition("::")
    if not separator or namespace in _BOOKKEEPING:
        return False
    return namespace != "aten" or _METADATA.match(short) is None


# -- Words -------------------------------------------------------------------------------------------

_CALLS: Final = {
    "aten::_local_scalar_dense": ".item()",
    "aten::item": ".item()",
    "aten::is_nonzero": "if tensor:",
    "cudaDeviceSynchronize": "torch.cuda.synchronize()",
}
"""Source code of programs that launches these ops and calls, by their names."""
_BACKWARD: Final = re.compile(r"autograd::engine::evaluate_function: (.+)", re.DOTALL)


def op_words(name: str | None) -> str:
    """Return an op as people know it: `.item()` for `aten::_local_scalar_dense`, `ViewBackward0` for its wrapper.

    Empty for None.
    """
    if name is None:
        return ""
    if match := _BACKWARD.fullmatch(name):
        return match[1]
    return _CALLS.get(name, name)
