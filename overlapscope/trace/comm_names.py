"""Names of kernels, CPU ops and ranges that communicate between devices. The table of families is the only one.

The names come from the sources of the libraries. They are compared without return type, template arguments and
parameters, in lower case, with an underscore between words: `moeA2ADispatchKernel` is `moe_a2a_dispatch_kernel`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

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
"""Regular expressions of the names of communication kernels, by library."""

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

JUDGED: Final = 2048
"""Number of characters of a name to examine. The template arguments, which may be long, come after them."""


_family, _looks, _other, _op, _collective_op, _more = (
    re.compile(pattern, re.VERBOSE)
    for pattern in (" | ".join(FAMILIES.values()), _LOOKS, _OTHER, _OPS, _COLLECTIVE_OPS, _MORE_THAN_COMMUNICATION)
)
_BOUNDARY: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z]{2})")
_NESTED: Final = re.compile(r"_ZN?K?(?=\d)")
_PART: Final = re.compile(r"\d+")


def base_name(name: str) -> str:
    """Return a kernel's qualified name without return type, template arguments and parameters."""
    name = name[:JUDGED].replace("(anonymous namespace)::", "").removeprefix("void ")
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


def communicates(kernel: str) -> bool:
    """Return whether a kernel communicates between devices, judged by its name."""
    words = _words(kernel)
    return _family.search(words) is not None and _other.search(words) is None


def looks_like_communication(kernel: str) -> bool:
    """Return whether a kernel may communicate, although its name alone doesn't show it."""
    words = _words(kernel)
    return _looks.search(words) is not None and _other.search(words) is None


def may_communicate(kernel: str) -> bool:
    """Return whether a kernel that an op launches to communicate does so, unless its name shows something else."""
    return _other.search(_words(kernel)) is None


def op_communicates(op: str) -> bool:
    """Return whether an op or a range on the host does nothing but communicate."""
    return _op.fullmatch(op) is not None and _more.search(op) is None


def names_collective(op: str) -> bool:
    """Return whether an op on the host is named after a collective. It may do more, such as converting data."""
    return _collective_op.fullmatch(_BOUNDARY.sub("_", op).lower()) is not None
