"""Diffs made by hand, for what no recording shows on demand: hostile names, many rows, too few steps."""

from __future__ import annotations

from typing import Literal

from overlapscope.analysis.results import Check, Environment, Trust
from overlapscope.compare.difference import (
    Basis,
    ComputeChange,
    ComputePart,
    CopyChange,
    DeviceDiff,
    Diff,
    Doubt,
    FigureChange,
    Figures,
    FindingChange,
    KernelChange,
    OpChange,
    RangeDiff,
    Side,
    StallChange,
    Unit,
)
from overlapscope.rules.finding import Finding

MS = 1_000_000
HOSTILE = "a\x1b[31mRED\x1b]0;t\x07[bold]b[/bold]|p|`t`<script>x</script>\n# h\r\u202e@you http://x.y"
COPY_CAUSES = ("lead-in", "pageable-memory", "no-compute", "same-stream")
IDLE_CAUSES = ("host-sync", "dispatch", "data-loading")


def change(
    before: float | None, after: float | None, *, name: str = "", unit: Unit = "ns", noise: float | None = 10_000
) -> FigureChange:
    """Return a change with an interval of twice `noise`, or without an interval if `noise` is None."""
    both_known = before is not None and after is not None
    by = after - before if before is not None and after is not None else None
    beyond_known = by is not None and noise is not None
    return FigureChange(
        name=name,
        unit=unit,
        before=before,
        after=after,
        change=by if both_known else None,
        noise_floor=2 * (noise or 0),
        low=by - noise if by is not None and noise is not None else None,
        high=by + noise if by is not None and noise is not None else None,
        beyond_noise=abs(by) > 2 * noise if beyond_known and by is not None and noise is not None else None,
    )


def figures(
    before: tuple[int, ...] = (5 * MS, 0, 4 * MS, 0, MS),
    after: tuple[int, ...] = (5 * MS, 0, MS, 0, MS),
    *,
    noise: float | None = 10_000,
) -> Figures:
    """Figures with these buckets; all exposed copy is `same-stream`, all idle time `host-sync`."""

    def time(name: str, before: float, other: float) -> FigureChange:
        return change(before, other, name=name, noise=noise)

    buckets = ("compute", "exposed comm", "exposed copy", "exposed other", "idle")
    exposed, idle = (before[2], after[2]), (before[4], after[4])
    return Figures(
        span=time("span", sum(before), sum(after)),
        buckets=tuple(time(name, first, other) for name, first, other in zip(buckets, before, after, strict=True)),
        exposed_copy_by_cause=tuple(
            time(name, *(exposed if name == "same-stream" else (0, 0))) for name in COPY_CAUSES
        ),
        exposed_comm_by_cause=(),
        exposed_other_by_cause=(),
        idle_by_cause=tuple(time(name, *(idle if name == "host-sync" else (0, 0))) for name in IDLE_CAUSES),
        engines=(time("SM busy", before[0], after[0]), time("H2D busy", 4 * MS, 4 * MS)),
        overlap=(
            change(0.0, 75.0, name="overlap efficiency", unit="pct", noise=None if noise is None else 0.5),
            change(None, 75.0, name="hidden copy share", unit="pct"),
            time("hidden copy", 0, 3 * MS),
        ),
    )


def finding(rule: str = "pageable-memory", cost_ns: int = 4 * MS, text: str = "Pinning saves 4 ms") -> Finding:
    return Finding(
        rule=rule,
        severity="info" if rule == "overlap-achieved" else "warning",
        source="trace.json.gz",
        rank=None,
        device=0,
        scope="window",
        title=text,
        detail=text,
        advice=text,
        cost_ns=cost_ns,
        where=None,
        example=None,
    )


def kernel(name: str, before: int, after: int, *, op: str | None = "aten::mm", was: str | None = None) -> KernelChange:
    return KernelChange(
        kernel=name,
        renamed_from=was,
        op=op,
        standing="slower" if after > before else "faster",
        count=change(4, 4, unit="count", noise=0),
        time=change(before, after),
    )


def device(
    names: str = "name",
    *,
    rank: int | None = None,
    shown: Figures | None = None,
    kernels: tuple[KernelChange, ...] | None = None,
    basis: Basis = "step",
) -> DeviceDiff:
    """One device with something in every list, all named alike."""
    return DeviceDiff(
        rank=rank,
        device=0,
        basis=basis,
        steps_before=8 if basis == "step" else 0,
        steps_after=7 if basis == "step" else 0,
        left_out_before=1,
        left_out_after=0,
        figures=shown or figures(),
        ranges=(
            RangeDiff(name=names, standing="both", count_before=8, count_after=7, figures=figures()),
            RangeDiff(name=f"{names} new", standing="new", count_before=0, count_after=7, figures=None),
        ),
        copies=(_copies("gone", "pageable", 3 * MS, 0), _copies("new", "pinned", 0, MS)),
        host_stalls=(
            StallChange(
                call="cudaStreamSynchronize",
                op=names,
                standing="both",
                host_wait=change(2 * MS, MS, name="host wait"),
                idle_caused=change(MS, 0, name="idle caused"),
                where_before=names,
                where_after=names,
            ),
        ),
        findings=(
            FindingChange(
                rule="pageable-memory",
                standing="gone",
                before=finding(text=names),
                after=None,
                cost=FigureChange(
                    name="cost",
                    unit="ns",
                    before=4 * MS,
                    after=None,
                    change=None,
                    noise_floor=MS // 10,
                    low=-4 * MS,
                    high=-4 * MS + MS // 10,
                    beyond_noise=True,
                ),
            ),
            FindingChange(
                rule="overlap-achieved",
                standing="new",
                before=None,
                after=finding("overlap-achieved", 0, names),
                cost=change(0, 0, name="cost"),
            ),
        ),
        kernels=kernels or (kernel(names, MS, 2 * MS, op=names, was=f"{names} once"),),
        compute=ComputeChange(change_ns=MS, parts=(ComputePart(part="new", change_ns=MS, kernels={names: MS}),)),
        ops=(
            OpChange(op=names, standing="slower", count=change(4, 4, unit="count", noise=0), time=change(MS, 2 * MS)),
        ),
        verdict=f"step 30% faster: {names}",
    )


def _copies(standing: Literal["new", "gone"], kind: str, before: int, after: int) -> CopyChange:
    counts = (12, 0) if standing == "gone" else (0, 12)
    return CopyChange(
        direction="h2d",
        source_kind=kind,
        target_kind="device",
        stream="main" if standing == "gone" else "side",
        standing=standing,
        count=change(*counts, name="count", unit="count", noise=0),
        bytes=change(*(count * 1000 for count in counts), name="bytes", unit="bytes", noise=0),
        time=change(before, after, name="time"),
        exposed=change(before, 0, name="exposed"),
        bandwidth=change(*((12.5, None) if standing == "gone" else (None, 52.5)), name="bandwidth", unit="gb_per_s"),
    )


def side(name: str = "trace.json.gz", *, gpu: str = "NVIDIA H200") -> Side:
    check = Check(id="sync-events", status="warn", detail="none", lost=None)
    return Side(
        sources=(name,),
        environment=Environment(gpus=(gpu,), torch="2.13.0", cuda="12.6"),
        trust=(Trust(verdict="degraded", checks=(check,)),),
    )


def sample(
    names: str = "name", *, devices: tuple[DeviceDiff, ...] | None = None, doubts: tuple[Doubt, ...] | None = None
) -> Diff:
    """Return a diff with something in every list."""
    doubt = Doubt(id="gpu", detail=f"Other GPUs: {names}.", holds=f"Counts hold: {names}.")
    return Diff(
        verdict=f"step 30% faster: {names}",
        of="recorded",
        before=side(f"{names}-before", gpu=names),
        after=side(f"{names}-after", gpu=names),
        doubts=(doubt,) if doubts is None else doubts,
        devices=(device(names),) if devices is None else devices,
        unmatched=(f"rank 3 of {names}",),
    )
