"""Rules: the GPU waits while the launching thread works or loads data."""

from __future__ import annotations

from overlapscope.analysis.host import loading
from overlapscope.analysis.host_lines import is_python
from overlapscope.analysis.host_sampled import whole_cpus
from overlapscope.base.intervals import covered, union
from overlapscope.base.words import listed
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._features import DATA_PARALLEL, features_of
from overlapscope.rules._launches import owners
from overlapscope.rules._lines import (
    fewer_threads,
    is_loading,
    is_not_torch,
    kinds_of_loading,
    most_in,
    top_line,
    with_lines,
)
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule, on_claimed
from overlapscope.trace.model import Kind, Memory

# -- python ------------------------------------------------------------------------------------------


def _draft_python(claims: Claims, pieces: ClaimedPieces) -> Draft:
    features = features_of(claims.trace)
    plain = [owner.optimizer for owner in owners(claims) if owner.optimizer and not owner.how]
    layers = "" if features.compiled else " Python of the model's own layers disappears with torch.compile(model)."
    fuse = f" {listed(plain)} runs less Python with foreach=True or fused=True." if plain else ""
    return Draft(
        where=top_line(claims, is_python),
        afterword=with_lines(claims, pieces, is_python),
        title=f"{claims.waits(pieces)} while the host runs Python between launches{most_in(claims, is_python)}",
        detail=f"In {claims.times_a_step(pieces.gaps, 'idle gap')} the launching thread was in Python, "
        f"between ops and runtime calls, and the {claims.gpu} had nothing left to do.",
        fixes=() if features.data_parallel else None,
        advice=claims.filled(DATA_PARALLEL)
        if features.data_parallel
        else f"Run less Python between launches, or do it while the {claims.gpu} is busy.\n"
        "Work of its own (metrics, tokenization, logging, checkpoints) fits a DataLoader worker, another thread or "
        f"process, or the time right after launching a long stretch of {claims.gpu} work.{layers}{fuse}",
    )


PYTHON = Rule(
    id="python",
    check=on_claimed("python", _draft_python),
    fixes=(("less-host python",),),
)


# -- cpu-ops -----------------------------------------------------------------------------------------


def _draft_cpu_ops(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        where=top_line(claims, is_not_torch),
        afterword=with_lines(claims, pieces, is_not_torch),
        title=f"{claims.waits(pieces)} while the host runs ops on the CPU{most_in(claims, is_not_torch)}",
        detail=f"In {claims.times_a_step(pieces.gaps, 'idle gap')} the launching thread was inside ops that "
        "launch nothing.",
        advice=fewer_threads(claims) + advice_by_case("cpu-ops", claims.gpu)["fix"],
    )


CPU_OPS = Rule(
    id="cpu-ops",
    check=on_claimed("cpu-ops", _draft_cpu_ops),
    fixes=(("less-host cpu-ops",),),
)


# -- data-loading ------------------------------------------------------------------------------------


def _draft_data_loading(claims: Claims, pieces: ClaimedPieces) -> Draft:
    names = {n for n in claims.trace.names if n.startswith("enumerate(DataLoader)#") and "__next__" in n}
    alone = bool(names) and all("_SingleProcessDataLoaderIter" in n for n in names)
    seen, advice = _with_workers(claims) if alone else _with_more_workers(claims, pieces)
    return Draft(
        where=top_line(claims, is_loading),
        afterword=f"{kinds_of_loading(claims)}{with_lines(claims, pieces, is_loading)}",
        title=f"{claims.waits(pieces)} for the DataLoader{most_in(claims, is_loading)}",
        detail=f"In {claims.times_a_step(pieces.gaps, 'gap')} the launching thread was inside the "
        f"DataLoader's next(), and the {claims.gpu} had nothing left to do.{seen * bool(names)}",
        advice=f"{advice} Fetch the next batch before the host waits for this step's result.",
    )


def _with_workers(claims: Claims) -> tuple[str, str]:
    """Return what shows that the loader has no workers, and the advice to use as many as keep up with the GPU."""
    loads, cpus = loading(claims.trace), whole_cpus(claims.trace.host_activity)
    loaded_ns = int(covered(union(loads.start_ns, loads.end_ns), claims.windows.starts, claims.windows.ends).sum())
    busy_ns = claims.judged_ns - claims.buckets.idle_ns
    enough = max(1, -(-loaded_ns // max(1, busy_ns)))
    workers = f"DataLoader(num_workers={enough if cpus is None else min(enough, cpus)})"
    limit = ", or one for each CPU if there are fewer" if cpus is None and enough > 1 else ""
    ops = claims.device.timeline.ops
    pageable = ((ops.kind == Kind.H2D) & (ops.source_kind == Memory.PAGEABLE)).any()
    pin = " and pin_memory=True" if pageable else ""
    return (
        " The loader has no workers, so the launching thread makes the samples itself: that takes "
        f"{claims.time_a_step(loaded_ns)}, and the {claims.gpu} is busy for {claims.time(busy_ns)}.",
        f"Let worker processes make the batches: {workers}{limit}.\nAlso set persistent_workers=True{pin}.",
    )


def _with_more_workers(claims: Claims, pieces: ClaimedPieces) -> tuple[str, str]:
    """Return how many times as many workers keep up with the GPU, and the advice on workers."""
    pace_ns = claims.judged_ns - pieces.time_ns
    more = ""
    if pace_ns > 0:
        times = -(-10 * claims.judged_ns // pace_ns) / 10
        more = f" About {times:.1f} times as many workers would keep up, if each has a CPU."
    return (
        more,
        "Use more DataLoader workers (num_workers), or make samples cheaper.\n"
        f"Decode once and store the result, or transform on the {claims.gpu}. If only some batches are late, a longer "
        "prefetch_factor bridges them. Keep the workers alive between epochs (persistent_workers=True).",
    )


DATA_LOADING = Rule(
    id="data-loading",
    check=on_claimed("data-loading", _draft_data_loading),
    effort="option",
    fixes=(("faster-loader",),),
)
