"""Rule: the GPU waits for the next batch."""

from __future__ import annotations

from overlapscope.analysis.host import loading
from overlapscope.analysis.host_sampled import whole_cpus
from overlapscope.base.intervals import covered, union
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._lines import is_loading, kinds_of_loading, most_in, top_line, with_lines
from overlapscope.rules.rule import Draft, Rule, on_claimed

_SLOWER = 2
"""Time of a worker for a batch, as a multiple of that of the launching thread."""


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    names = {n for n in claims.trace.names if n.startswith("enumerate(DataLoader)#") and "__next__" in n}
    alone = bool(names) and all("_SingleProcessDataLoaderIter" in n for n in names)
    seen = " The loader has no workers, so the launching thread makes the samples itself." if alone else ""
    return Draft(
        where=top_line(claims, is_loading),
        afterword=f"{kinds_of_loading(claims)}{with_lines(claims, pieces, is_loading)}",
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} for the DataLoader{most_in(claims, is_loading)}",
        detail=f"In {claims.times_a_step(pieces.gaps, 'gap')} the launching thread was inside the "
        "DataLoader's next(), and "
        f"the GPU had nothing left to do.{seen}",
        advice=(
            f"Let worker processes make the batches: {_with_workers(claims)}.\n"
            "Set persistent_workers=True and pin_memory=True as well."
            if alone
            else "Use more DataLoader workers (num_workers) and a longer prefetch_factor.\n"
            "Keep the workers alive between epochs (persistent_workers=True), and make samples cheaper: decode once, "
            "transform on the GPU."
        )
        + " Fetch the next batch before the host waits for this step's result.",
    )


def _with_workers(claims: Claims) -> str:
    """Return the loader with workers that make batches as fast as the other work of a step, up to one for each CPU.

    A worker may take twice as long for a batch as the launching thread. The number is unknown if steps are, or if
    nothing but loading is in them.
    """
    loads, activity = loading(claims.trace), claims.trace.host_activity
    loaded_ns = int(covered(union(loads.start_ns, loads.end_ns), claims.windows.starts, claims.windows.ends).sum())
    rest_ns = claims.judged_ns - loaded_ns
    if not claims.steps or rest_ns <= 0:
        return "DataLoader(num_workers=4 or more)"
    cpus = None if activity is None else whole_cpus(activity)
    enough = max(2, -(-_SLOWER * loaded_ns // rest_ns))
    if cpus is None:
        return f"DataLoader(num_workers={enough}), or one for each CPU if there are fewer"
    return f"DataLoader(num_workers={min(enough, cpus)})"


RULE = Rule(
    id="data-loading",
    severity="warning",
    summary="The GPU waits for the DataLoader.",
    meaning="The launching thread is inside the DataLoader's next. Without workers it loads the samples itself; "
    "with workers it waits because they are too few or too slow.",
    computation="Idle time of cause data-loading: the corresponding host time lies inside "
    "`enumerate(DataLoader)#...__next__`. An upper bound: with instant batches, the next limit shows.",
    wrong="""import torch
from torch.utils.data import DataLoader, TensorDataset

weight = torch.randn(64, 64, device="cuda")
data = TensorDataset(torch.randn(10_000, 64))
for (batch,) in DataLoader(data, batch_size=256):
    batch.cuda() @ weight
""",
    right="""import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    weight = torch.randn(64, 64, device="cuda")
    data = TensorDataset(torch.randn(10_000, 64))
    loader = DataLoader(data, batch_size=256, num_workers=4, persistent_workers=True, pin_memory=True)
    for (batch,) in loader:
        batch.cuda(non_blocking=True) @ weight
""",
    check=on_claimed("data-loading", _draft),
    effort="option",
    fixes=(("faster-loader",),),
)
