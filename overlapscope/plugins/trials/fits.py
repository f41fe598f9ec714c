"""Selection of the changes that fit a program's steps, with a pure function for each change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from msgspec.structs import replace

from overlapscope.base.words import plural
from overlapscope.plugins.trials import late_values
from overlapscope.plugins.trials.changes import CHANGES
from overlapscope.plugins.trials.protocol import Facts
from overlapscope.plugins.trials.result import LeftOut
from overlapscope.plugins.trials.search import SHARP_PCT, Candidate

_ON_GPUS: Final = ("pin", "non-blocking", "prefetch", "graph", "late-item")
_NO_GPU: Final = "The program uses no GPU."
_NO_UPLOADS: Final = "Its steps copy nothing to the GPU."

Fit = Candidate | str
"""The change with the values to try, or a sentence on why it does not fit."""


def candidates(
    facts: Facts, ranks: int, only: Collection[str], also: Collection[str]
) -> tuple[list[Candidate], list[LeftOut]]:
    """Return the changes to try, in the catalogue's order, and the changes that do not fit.

    Args:
        only: Changes to choose from; empty for all defaults.
        also: Further changes, which are not tried by default.
    """
    facts = replace(facts, cpus=facts.cpus // ranks)
    fitting: list[Candidate] = []
    unfit: list[LeftOut] = []
    for change in CHANGES.values():
        if change.id not in (only or also) and not (change.unasked and not only):
            continue
        fit = _NO_GPU if change.id in _ON_GPUS and not facts.cuda else _FITS[change.id](facts)
        if isinstance(fit, str):
            unfit.append(left_out(change.id, fit))
        else:
            fitting.append(fit)
    return fitting, unfit


def _workers(facts: Facts) -> Fit:
    if not facts.loaders:
        return "Its steps take no batches from a DataLoader."
    loaders = [loader for loader in facts.loaders if not loader.iterable and not loader.on_gpu]
    if not loaders:
        if all(loader.iterable for loader in facts.loaders):
            return "Its dataset is an IterableDataset, of which each worker would load all."
        return "Its DataLoader makes batches on the GPU, which worker processes cannot."
    has = max(loader.num_workers for loader in loaders)
    counts = [str(count) for count in _doubling(facts.cpus) if count > has]
    if not counts:
        cpus = plural(facts.cpus, "CPU")
        return f"Its DataLoader has {plural(has, 'worker')}, for {cpus}." if has else "There is only one CPU."
    return Candidate("workers", tuple(counts), rising=True)


def _doubling(most: int) -> list[int]:
    """Return 2, 4, 8 and 16 up to `most`, and `most` itself if it is between 2 and 16."""
    counts = [count for count in (2, 4, 8, 16) if count <= most]
    return [*counts, most] if 2 < most < 16 and most not in counts else counts


def _collate(facts: Facts) -> Fit:
    if not any(loader.collates for loader in facts.loaders):
        return "Its steps take no batches from a TensorDataset, sample by sample."
    return Candidate("collate")


def _pin(facts: Facts) -> Fit:
    if not facts.uploads:
        return _NO_UPLOADS
    if all(upload.pinned for upload in facts.uploads):
        return "All that its steps copy to the GPU is in pinned memory already."
    return Candidate("pin")


def _non_blocking(facts: Facts) -> Fit:
    if not facts.uploads:
        return _NO_UPLOADS
    if all(upload.non_blocking for upload in facts.uploads):
        return "All its copies to the GPU have `non_blocking=True` already."
    return Candidate("non-blocking")


def _prefetch(facts: Facts) -> Fit:
    if not any(upload.from_loader for upload in facts.uploads):
        return "Its steps copy no batch of a DataLoader to the GPU."
    return Candidate("prefetch")


def _graph(facts: Facts) -> Fit:
    if not facts.modules:
        return "Its steps call no module with parameters."
    if all(module.compiled for module in facts.modules):
        return "Its module is compiled already."
    capture = ("capture",) if any(not module.capturable for module in facts.modules) else ()
    return Candidate("graph", ("compile", "fuse", *capture))


def _fused(facts: Facts) -> Fit:
    if not facts.optimizers:
        return "It has no optimizer."
    if all(optimizer.fused for optimizer in facts.optimizers):
        return "Its optimizer is fused already."
    if not any(optimizer.takes_fused and not optimizer.fused for optimizer in facts.optimizers):
        return "Its optimizer has no fused form for these parameters."
    return Candidate("fused")


def _foreach(facts: Facts) -> Fit:
    missing = any(optimizer.foreach_missing and not optimizer.takes_fused for optimizer in facts.optimizers)
    if not missing and not facts.clippings:
        return "Its optimizers and its clipping handle many parameters at a time already, or can be fused."
    return Candidate("foreach")


def _gc(facts: Facts) -> Fit:
    if facts.gc_pct < SHARP_PCT:
        return f"Python's garbage collector takes {facts.gc_pct:.1f}% of its steps."
    return Candidate("gc")


def _threads(facts: Facts) -> Fit:
    cpus = max(1, facts.cpus)
    if facts.threads <= cpus:
        return f"Torch uses {plural(facts.threads, 'thread')}, for {plural(cpus, 'CPU')}."
    return Candidate("threads", (str(cpus),))


def _late_item(facts: Facts) -> Fit:
    if not facts.reads:
        return "Its steps read no value with `.item()` or `float()`."
    reasons = [late_values.why_not(read.site.path, read.site.line) for read in facts.reads if not read.site.library]
    if not reasons:
        return "Only libraries read values in its steps."
    return Candidate("late-item") if "" in reasons else reasons[0]


_FITS: Final[Mapping[str, Callable[[Facts], Fit]]] = {
    "workers": _workers,
    "collate": _collate,
    "pin": _pin,
    "non-blocking": _non_blocking,
    "prefetch": _prefetch,
    "graph": _graph,
    "fused": _fused,
    "foreach": _foreach,
    "gc": _gc,
    "threads": _threads,
    "late-item": _late_item,
}


def left_out(change: str, reason: str) -> LeftOut:
    """Return the record of a change that is not tried."""
    return LeftOut(change=change, title=CHANGES[change].title, reason=reason)
