"""The GPU waits for the next batch."""

from __future__ import annotations

from collections.abc import Iterator

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.base.words import duration, plural, share
from overlapscope.rules._claims import Claims
from overlapscope.rules._text import first, spread
from overlapscope.rules.finding import Draft
from overlapscope.rules.rule import Rule


def _check(analysis: TraceAnalysis, device: DeviceAnalysis, found: Claims) -> Iterator[Draft]:
    mine = found.of("data-loading")
    if not found.matters(mine.time_ns):
        return
    names = {n for n in analysis.trace.names if n.startswith("enumerate(DataLoader)#") and "__next__" in n}
    alone = bool(names) and all("_SingleProcessDataLoaderIter" in n for n in names)
    places = mine.places(analysis.trace)
    seen = " The loader has no workers: samples are made in the launching thread." if alone else ""
    yield Draft(
        title=f"The GPU is idle for {duration(mine.time_ns)} waiting for the DataLoader "
        f"({share(mine.time_ns, found.judged_ns)} of the span)",
        detail=f"In {plural(len(mine.start_ns), 'gap')} the launching thread was inside "
        f"the DataLoader's next while the GPU had nothing left to do.{seen}{spread(places)}",
        advice=(
            "Let worker processes make the batches: DataLoader(num_workers=4 or more, "
            "persistent_workers=True, pin_memory=True)."
            if alone
            else "Give the loader more workers (num_workers) and a longer queue (prefetch_factor), keep them alive "
            "between epochs (persistent_workers=True), and make samples cheaper: decode once, transform on the GPU."
        )
        + " Fetch the next batch before the host waits for this step's result.",
        bound_ns=mine.time_ns,
        where=first(places),
        example=mine.example,
    )


RULE = Rule(
    id="data-loading",
    severity="warning",
    summary="The GPU waits for the DataLoader.",
    meaning="The launching thread sits in the DataLoader's next. Without workers it makes the samples "
    "itself; with workers it waits because they are too few or too slow.",
    computation="Idle time of cause data-loading: the host time it is the image of lies inside "
    "`enumerate(DataLoader)#...__next__`. An upper bound: with instant batches the next limit shows.",
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
    check=_check,
    fixes=(("faster-loader",),),
)
