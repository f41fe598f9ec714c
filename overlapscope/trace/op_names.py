"""Classification of GPU ops by category and name. No other module interprets op names for this.

The functions are pure. Call them once for each distinct name, not for each event.

The facts come from kineto's sources: `memcpyKindString` and `memoryKindString` (`cupti_strings.cpp`) for CUDA,
`getGpuActivityKindString` (`RocprofActivity_inl.h`) for ROCm, `memcpyName` (`plugin/xpupti`) for XPU, and
`ActivityType.h` for categories. The first releases of kineto wrote the categories `Kernel`, `Memcpy`, `Memset`.
"""

from __future__ import annotations

import re

from overlapscope.trace.comm_names import JUDGED, base_name, communicates
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
_MIGRATION_NAME = re.compile(r"Migration\b")
"""Page migrations of managed memory, as the reader of Nsight Systems names them."""
_MIGRATION_TO_HOST = re.compile(r"Migration DtoH\b")
_COPY_NAME = re.compile(r"\s*(?:memcpy|copy)\s+(\S+)", re.IGNORECASE)
_FILL_NAME = re.compile(r"\s*(?:memset|fill)", re.IGNORECASE)
_SIDES = re.compile(r"\((.+?)\s*->\s*(.+)\)\s*$")

# ROCm 7.1 records copies as kernels, under the name of the transfer or of the blit kernel that does it.
_TRANSFER = re.compile(r"(?:MEMORY_COPY_|Copy)(Host|Device)_?To_?(Host|Device)$", re.IGNORECASE)
_BLIT_COPY = re.compile(r"__amd_rocclr_copy")
"""Kernels by which ROCm copies, within the device or between it and the host."""
_WITHIN_DEVICE = re.compile(r"(?:hip|cu|cuda)Memcpy\w*(?:DtoD|Peer)")
_BETWEEN_DEVICES = re.compile(r"(?:hip|cu|cuda)Memcpy\w*Peer")
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
    category, name = category.lower(), name[:JUDGED]
    if category in _FILL:
        return Kind.OTHER
    if category in _COPY or (category == MTIA and _COPY_NAME.match(name)):
        return _copy_kind(name)
    if category == MTIA and name == MTIA_COPY:
        return Kind.OTHER
    return _kernel_kind(name)


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
    sides = _SIDES.search(name[:JUDGED])
    if sides is None:
        return Memory.UNKNOWN, Memory.UNKNOWN
    source, target = (_MEMORY.get(side.strip().lower(), Memory.UNKNOWN) for side in sides.groups())
    return source, target


def is_migration_to_host(name: str) -> bool:
    """Return whether an op's name is that of a page migration to the host, which has usually touched the page."""
    return _MIGRATION_TO_HOST.match(name) is not None


def is_migration(name: str) -> bool:
    """Return whether the name of an op of `Kind.OTHER` is that of a page migration of managed memory."""
    return _MIGRATION_NAME.match(name) is not None


def is_fill(name: str) -> bool:
    """Return whether the name of an op of `Kind.OTHER` is that of a memset."""
    return _FILL_NAME.match(name) is not None or _BLIT_FILL.match(name) is not None


def hides_direction(name: str) -> bool:
    """Return whether an op of `Kind.OTHER` may, by its name, be a copy between host and device."""
    name = name[:JUDGED]
    direction = _COPY_NAME.match(name)
    if _BLIT_COPY.match(name):
        return True
    if is_migration(name) or is_fill(name) or _TRANSFER.match(name):
        return False
    sides = set(memory_kinds("gpu_memcpy", name))
    stated = direction is not None and _KNOWN_DIRECTION.fullmatch(direction[1])
    return not stated and not sides <= _ON_HOST and not sides <= _ON_DEVICE


def states_device_copy(call: str) -> bool:
    """Return whether the name of a call says that it copies within or between devices: `hipMemcpyDtoDAsync`."""
    return _WITHIN_DEVICE.match(call) is not None


def states_peer_copy(call: str) -> bool:
    """Return whether the name of a call says that it copies between devices: `hipMemcpyPeerAsync`."""
    return _BETWEEN_DEVICES.match(call) is not None


def _copy_kind(name: str) -> Kind:
    transfer = _TRANSFER.match(name)
    if transfer is not None:
        return _transfer_kind(*transfer.groups())
    direction = _COPY_NAME.match(name)
    if direction is not None and _KNOWN_DIRECTION.fullmatch(direction[1]):
        return _DIRECTION.get(direction[1].lower(), Kind.OTHER)
    # kineto writes `<unknown>` for an unknown direction; the memory kinds may still show it.
    source, target = memory_kinds("gpu_memcpy", name)
    if source in _ON_HOST and target in _ON_DEVICE:
        return Kind.H2D
    if source in _ON_DEVICE and target in _ON_HOST:
        return Kind.D2H
    return Kind.OTHER


def _kernel_kind(name: str) -> Kind:
    transfer = _TRANSFER.match(name)
    if transfer is not None:
        return _transfer_kind(*transfer.groups())
    if _BLIT_COPY.match(name) or _BLIT_FILL.match(name):
        return Kind.OTHER
    return Kind.COMM if communicates(name) else Kind.COMPUTE


def _transfer_kind(source: str, target: str) -> Kind:
    match source.lower(), target.lower():
        case "host", "device":
            return Kind.H2D
        case "device", "host":
            return Kind.D2H
    return Kind.OTHER


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
