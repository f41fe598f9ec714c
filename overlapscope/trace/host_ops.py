"""Names of CPU ops and ranges on the host, by the work that they stand for.

PyTorch records ops by their schema (`aten::add`), nodes of the backward pass (`AddmmBackward0`) and Python functions by
their class (`CheckpointFunction`). The functions are pure. Call them once for each distinct name.
"""

from __future__ import annotations

import re

OPTIMIZER_STEP = "Optimizer.step#"
"""Beginning of the names of torch's ranges around an optimizer's step (torch/optim/optimizer.py)."""
OPTIMIZER_ZERO_GRAD = "Optimizer.zero_grad#"

_ENGINE = re.compile(r"autograd::engine::|torch::autograd::|(torch::)?\w+Backward\d+$")
_REDUCER = re.compile(r".*distributed(\.ddp)?(\.|::)reducer::")
_OPERATOR = re.compile(r"\w+::|\w*Backward\d*$|autograd::")
_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional"})
"""Namespaces of collectives."""
_COLLECTIVE_RANGE = re.compile(r"(?:gloo|mpi|ucc|xccl):\w+")
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


_ALLOCATION = re.compile(r"aten::(new_)?empty\w*|aten::resize\w*|aten::_efficientzerotensor")


def is_operator(name: str) -> bool:
    """Return whether a name is of an operator of PyTorch, rather than of a library's or the system's call."""
    return _OPERATOR.match(name) is not None


def allocates(name: str) -> bool:
    """Return whether an op that launches nothing allocates memory."""
    return _ALLOCATION.fullmatch(name) is not None


def is_engine(name: str) -> bool:
    """Return whether an op is a node of the backward pass in C++, or autograd's engine around a node."""
    return _ENGINE.match(name) is not None


def is_reducer(name: str) -> bool:
    """Return whether an op is of the reducer with which DistributedDataParallel joins gradients."""
    return _REDUCER.match(name) is not None


def starts_collective(name: str) -> bool:
    """Return whether an op is a collective, or starts one."""
    return name.partition("::")[0] in _COLLECTIVES


def is_collective_range(name: str) -> bool:
    """Return whether a range is the work of a collective on the host, on a thread of its backend."""
    return _COLLECTIVE_RANGE.fullmatch(name) is not None


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
