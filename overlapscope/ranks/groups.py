"""Time and bandwidth of each collective of each process group, summed over the ranks and the steps that all judge.

Kernels of different rows may run at the same time, so all communication together can be shorter than the sum of the
rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.messages import bus_factor
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import I64, intersect, total, union
from overlapscope.ranks.comm_causes import CommCauses
from overlapscope.ranks.comm_result import CommTime, Communication, GroupCollective
from overlapscope.ranks.dimensions import find_dimensions
from overlapscope.ranks.pairs import transfers as message_transfers
from overlapscope.ranks.reduced import CommKind, ReducedRank
from overlapscope.ranks.transfers import find_transfers, sums
from overlapscope.ranks.waits import RankWaits
from overlapscope.ranks.windows import judged_windows, time_in


def by_group(ranks: Sequence[ReducedRank], waits: RankWaits, causes: CommCauses) -> Communication:
    """Return the time and bandwidth of each collective of each group, the longest exposed first."""
    windows = judged_windows(ranks, waits)
    kernels, transfers = waits.meetings.kernels, find_transfers(waits, windows.begins)
    moved = sums(transfers) | message_transfers(waits.messages, kernels, windows.begins)
    dimensions = find_dimensions(ranks, waits, windows, transfers)
    rows = []
    for number, of_kind in rows_by(kernels.kind):
        inside = windows.inside(of_kind)
        if len(inside):
            sizes, members = kernels.bytes[inside[windows.begins[inside]]], len(distinct(kernels.rank[inside]))
            time, transfer = time_in(windows, inside), moved.get(number, (0, 0))
            rows.append(
                _row(kernels.kinds[number], time, sizes, members, transfer, dimension=dimensions.of_kind[number])
            )
    rows.sort(key=lambda row: (-row.time.exposed_ns, -row.time.busy_ns, row.group, row.group_ranks, row.collective))
    time = time_in(windows, np.arange(len(kernels.kind)))
    busy = union(windows.start_ns, windows.end_ns)
    exposed = {str(cause): total(intersect(times, busy)) for cause, times in causes.items()}
    return Communication(
        ranks=len(ranks),
        steps=len(waits.steps.names),
        time=time,
        exposed_by_cause=exposed,
        rows=tuple(rows),
        dimensions=dimensions.every,
        mesh=dimensions.mesh,
        slow_groups=dimensions.slow,
        nvlink_gb_per_s=nvlink_gb_per_s({rank.device_name for rank in ranks}),
    )


def _row(
    kind: CommKind, time: CommTime, sizes: I64, members: int, transfer: tuple[int, int], *, dimension: int
) -> GroupCollective:
    moved, took_ns = transfer
    factor = bus_factor(kind.collective, kind.group_size)
    algorithm = moved / took_ns if took_ns else None
    return GroupCollective(
        collective=kind.collective,
        group=kind.group,
        description=kind.description,
        group_ranks=kind.ranks,
        group_size=kind.group_size if kind.group_size >= 0 else None,
        ranks=members,
        count=len(sizes),
        bytes=int(sizes.sum()) if (sizes >= 0).all() else None,
        time=time,
        transferred_bytes=moved,
        transferred_ns=took_ns,
        algorithm_gb_per_s=algorithm,
        bus_gb_per_s=float(algorithm * factor[0]) if algorithm is not None and factor is not None else None,
        bus_factor=factor[1] if factor is not None else "",
        dimension=dimension,
    )


# -- Speeds of links, by the names of GPUs -----------------------------------------------------------

_NVLINK: Final = (
    (re.compile(r"(Tesla |NVIDIA )?V100-SXM\d"), 150.0),
    (re.compile(r"(NVIDIA )?A100-SXM4"), 300.0),
    (re.compile(r"NVIDIA (H100 80GB HBM3|H200)$"), 450.0),
    (re.compile(r"NVIDIA G?B200\b"), 900.0),
)
"""GPUs whose boards connect all of them by NVLink, and the GB/s of a GPU each way: half of what NVIDIA's data sheets
state. Cards for PCIe have other names."""


def nvlink_gb_per_s(devices: Iterable[str | None]) -> float | None:
    """Return the bandwidth of NVLink each way; None if it is unknown for any of these GPUs, or they differ."""
    speeds = {next((speed for name, speed in _NVLINK if device and name.match(device)), None) for device in devices}
    return speeds.pop() if len(speeds) == 1 else None
