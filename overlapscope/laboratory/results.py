"""What the laboratory found, as frozen structures; their names are those of `results.json`.

An experiment's result repeats what its file declares (what must be true, what others measured), so that a report
needs neither the file nor PyTorch. `None` is what is unknown or was not measured.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from overlapscope.analysis.results import Buckets, CopyGroup, Overlap
from overlapscope.base.saved import Tool
from overlapscope.laboratory.experiment import Truth, WrongResults
from overlapscope.rules.finding import CostFrom, Severity

SCHEMA_VERSION = 1
FILE = "results.json"

Status = Literal["ok", "failed", "skipped"]


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """What joins the first GPU to the host. Rates are in 1e9 bytes per second, from and to pinned memory."""

    pcie_generation: int | None = None
    """As read while copies ran: an idle link may be slowed down."""
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    """Lanes, read with the generation."""
    h2d_gb_per_s: float | None = None
    """Best rate seen."""
    d2h_gb_per_s: float | None = None
    both_gb_per_s: float | None = None
    """Both directions at once, added up."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What an experiment ran on."""

    gpus: tuple[str, ...] = ()
    gpu_memory_bytes: int | None = None
    """Of the first GPU."""
    driver: str | None = None
    cuda: str | None = None
    """The version PyTorch was built for."""
    torch: str
    python: str
    system: str
    cpu: str | None = None
    cores: int | None = None
    """Logical cores that the process may use."""
    memory_bytes: int | None = None
    link: Link = Link()


class TimeSpread(msgspec.Struct, frozen=True, kw_only=True):
    """The times of single iterations, in milliseconds."""

    median: float
    iqr: float
    """Between the quartiles."""
    n: int


class FindingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of the analysis, in short."""

    rule: str
    severity: Severity
    cost_ns: int
    cost_from: CostFrom = "bound"
    """As in a report; files written before findings were replayed hold bounds."""
    title: str


class StripLane(msgspec.Struct, frozen=True, kw_only=True):
    """How full one kind of work made each slice of a strip."""

    name: str
    fill: str
    """A character for each slice: `.` for nothing, else 0 to 9, the tenths begun."""


class RecordedStrip(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the recording, cut into equal slices."""

    label: str
    """The step shown; empty for the whole recording."""
    span_ns: int
    lanes: tuple[StripLane, ...]


class VerdictSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The analysis in a few sentences."""

    level: Literal["good", "fair", "poor", "unusable"]
    text: str


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """The essentials of one device in one trace; their words are those of the JSON report."""

    trace: str
    """The file, relative to that of the results."""
    rank: int | None
    device: int
    trust: Literal["trusted", "degraded", "unusable"]
    doubts: tuple[str, ...]
    """The checks that warned or failed."""
    span_ns: int
    steps: int
    step_ns: int | None
    """Length of the step of median length."""
    buckets: Buckets
    overlap: Overlap
    exposed_copy_by_cause: dict[str, int]
    idle_by_cause: dict[str, int]
    host_wait_ns: int
    """Time the host spent in blocking calls."""
    host_idle_ns: int
    """GPU idle time that followed from them."""
    copies: tuple[CopyGroup, ...]
    findings: tuple[FindingSummary, ...]
    verdict: VerdictSummary
    strip: RecordedStrip

    @property
    def rules(self) -> tuple[str, ...]:
        """Those that fired, each once."""
        return tuple(dict.fromkeys(finding.rule for finding in self.findings))


class VariantResult(msgspec.Struct, frozen=True, kw_only=True):
    """One variant: what its file says of it, and what was found."""

    name: str
    shows: str
    parameters: dict[str, Any]
    truth: Truth
    published: dict[str, float]
    wrong_expected: Literal["none", "some"] | None
    status: Status = "skipped"
    error: str | None = None
    """Why it failed or was skipped."""
    wall_ms: TimeSpread | None = None
    """Until the device has finished; of the slowest of several ranks."""
    host_ms: TimeSpread | None = None
    """Until the program goes on, the device perhaps still working; of the same rank."""
    figures: dict[str, float | None] = {}
    """The program's own measurements; names say their unit."""
    wrong_results: WrongResults | None = None
    notes: tuple[str, ...] = ()
    """What is special about the recording."""
    traces: tuple[str, ...] = ()
    """Files, relative to that of the results, by rank."""
    analyses: tuple[Analysis, ...] = ()
    """One for each device in each trace."""


class ExperimentResult(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment, run on one machine at one scale."""

    name: str
    title: str
    shows: str
    published_on: str
    faster: tuple[tuple[str, str], ...]
    recorded: str
    """What the recordings leave out of the timed program."""
    gpus: int
    ranks: int
    warmup_steps: int
    recorded_steps: int
    scale: str
    sizes: dict[str, Any]
    sizes_as_published: bool
    date: str
    """Day it was run (UTC)."""
    machine: Machine
    variants: tuple[VariantResult, ...]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Everything in one directory."""

    kind: Literal["laboratory"] = "laboratory"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    experiments: tuple[ExperimentResult, ...] = ()
