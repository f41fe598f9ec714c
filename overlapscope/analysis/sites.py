"""Places in the program that launched ops, or captured them in graphs."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.host import MODULE, Sites, around, launches_graphs, modules_called, sites_of_calls
from overlapscope.base.columns import pick
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64
from overlapscope.trace.model import GpuOps, Trace


def sites_of_ops(trace: Trace, ops: GpuOps, call: I64 | None = None) -> Sites:
    """Return the sites of the calls that launched some ops, or of other calls that are to blame for them.

    If an op's graph was launched by that call, its op and line are those of the capture, as far as known.
    """
    call = ops.launch if call is None else call
    sites = sites_of_calls(trace, call)
    if not launches_graphs(trace):
        return sites
    from overlapscope.analysis.graphs import origins_of

    captured, own = origins_of(trace, ops), call == ops.launch
    op, line = (
        np.where(own & (mine >= 0), mine, theirs)
        for mine, theirs in ((captured.op, sites.op), (captured.line, sites.line))
    )
    return Sites(op, sites.call, line)


def modules_of(trace: Trace, ops: GpuOps) -> tuple[I64, tuple[str, ...]]:
    """Return the classes of the modules in which ops were launched or captured.

    Returns:
        The class of each op's module, such as `Linear`, as a row of the second value; -1 if unknown.
    """
    calls, modules = trace.runtime_calls, modules_called(trace)
    if not len(modules) and not trace.captures:
        return np.full(len(ops), -1, np.int64), ()
    name = pick(modules.name_id, around(modules, pick(calls.thread, ops.launch), pick(calls.start_ns, ops.launch)))
    if launches_graphs(trace):
        from overlapscope.analysis.graphs import origins_of

        captured = origins_of(trace, ops).module
        name = np.where(captured >= 0, captured, name)
    ids = distinct(name[name >= 0])
    classes = [trace.names[number].removeprefix(MODULE).rpartition("_")[0] for number in ids.tolist()]
    different = tuple(dict.fromkeys(classes))
    number = np.array([different.index(each) for each in classes], np.int64)
    return pick(number, np.where(name >= 0, np.searchsorted(ids, name), -1)), different
