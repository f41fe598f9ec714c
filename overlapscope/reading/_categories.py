"""The table that an event belongs to, by its category."""

from __future__ import annotations

from enum import IntEnum

from overlapscope.trace import op_names


class EventTable(IntEnum):
    """Table for events of some categories."""

    IGNORED = 0
    GPU = 1
    SYNC = 2
    RUNTIME = 3
    CPU = 4
    ANNOTATION = 5
    PYTHON = 6
    OVERHEAD = 7
    SPAN = 8
    DEVICE_ANNOTATION = 9
    COLLECTIVE = 10
    """Further columns of some GPU ops. No category belongs to this table."""


# From kineto's `ActivityType.h`, whose comments state that glow, hpu, mtia, xpu and privateuse1 runtime and driver
# events are on the host. Its first releases wrote `Operator`, `Runtime`, `Kernel`, `Memcpy`, `Memset`.
TABLES = {
    **dict.fromkeys(op_names.GPU_CATEGORIES, EventTable.GPU),
    **dict.fromkeys(("cuda_sync", "xpu_sync"), EventTable.SYNC),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver"), EventTable.RUNTIME),
    **dict.fromkeys(("privateuse1_runtime", "privateuse1_driver", "mtia_runtime"), EventTable.RUNTIME),
    **dict.fromkeys(("glow_runtime", "hpu_op", "runtime"), EventTable.RUNTIME),
    **dict.fromkeys(("cpu_op", "operator"), EventTable.CPU),
    "user_annotation": EventTable.ANNOTATION,
    "gpu_user_annotation": EventTable.DEVICE_ANNOTATION,
    "python_function": EventTable.PYTHON,
    "overhead": EventTable.OVERHEAD,
    "trace": EventTable.SPAN,
}
"""Lower-case categories of complete events that are read. All other categories are ignored."""


class _TableOf(dict[str, EventTable]):
    def __missing__(self, category: str) -> EventTable:
        table = self[category] = TABLES.get(category.lower(), EventTable.IGNORED)
        return table


table_of = _TableOf()
"""Table of a category in any case: `table_of[category]`."""
