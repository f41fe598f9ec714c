"""Results of the laboratory, as frozen structures whose names are those of `results.json`.

An experiment's result repeats the declarations of its file (what must be true, what others measured), so that a report
needs neither the file nor PyTorch. `None` means unknown or not measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from overlapscope.analysis.figures import ShownOverlap
from overlapscope.analysis.measured import Buckets, Overlap
from overlapscope.analysis.results import CopyGroup
from overlapscope.base import disk
from overlapscope.base.saved import SCHEMA_VERSION, Tool, decode, encode
from overlapscope.errors import UsageError
from overlapscope.plugins.laboratory import RESULTS
from overlapscope.plugins.laboratory.experiment import Truth, WrongResults
from overlapscope.report.verdict import Level
from overlapscope.rules.finding import Severity

Status = Literal["ok", "failed", "skipped"]


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Link between the first GPU and the host. Rates are in 1e9 bytes per second, from and to pinned memory."""

    pcie_generation: int | None = None
    """Generation read while copies ran, because an idle link may be slowed down."""
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    """Number of lanes, read with the generation."""
    h2d_gb_per_s: float | None = None
    """Best rate measured."""
    d2h_gb_per_s: float | None = None
    both_gb_per_s: float | None = None
    """Sum of both directions at once."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Machine that an experiment ran on."""

    gpus: tuple[str, ...] = ()
    gpu_memory_bytes: int | None = None
    """Memory of the first GPU."""
    driver: str | None = None
    cuda: str | None = None
    """Version that PyTorch was built for."""
    torch: str
    python: str
    system: str
    cpu: str | None = None
    cores: int | None = None
    """Number of logical cores that the process may use."""
    memory_bytes: int | None = None
    link: Link = Link()


class TimeSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Times of single iterations, in milliseconds."""

    median: float
    iqr: float
    """Interquartile range."""
    n: int


class FindingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Short form of a finding."""

    rule: str
    """Id of the rule."""
    severity: Severity
    cost_ns: int
    title: str


class VerdictSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict on a device in a few sentences."""

    level: Level
    text: str


class Analysis(ShownOverlap, msgspec.Struct, frozen=True, kw_only=True):
    """Main results on one device of one trace, in the words of the JSON report."""

    trace: str
    """File, relative to that of the results."""
    rank: int | None
    device: int
    trust: Literal["trusted", "degraded", "unusable"]
    doubts: tuple[str, ...]
    """Ids of the checks that warned or failed."""
    span_ns: int
    """Length of an average step, or of the time after the lead-in."""
    steps: int
    """Number of steps that the figures are averages of; 0 if they are of the time after the lead-in."""
    buckets: Buckets
    overlap: Overlap
    exposed_copy_by_cause: dict[str, int]
    idle_by_cause: dict[str, int]
    host_wait_ns: int
    """Time that the host spent in blocking calls."""
    host_idle_ns: int
    """GPU idle time caused by blocking calls."""
    copies: tuple[CopyGroup, ...]
    findings: tuple[FindingSummary, ...]
    verdict: VerdictSummary

    @property
    def rules(self) -> tuple[str, ...]:
        """Rules that fired, each once."""
        return tuple(dict.fromkeys(finding.rule for finding in self.findings))


class VariantResult(msgspec.Struct, frozen=True, kw_only=True):
    """One variant: the declarations of its file, and its results."""

    name: str
    shows: str
    parameters: dict[str, Any]
    truth: Truth
    published: dict[str, float]
    wrong_expected: Literal["none", "some"] | None
    status: Status = "skipped"
    error: str | None = None
    """Reason for a failure or for skipping it."""
    wall_ms: TimeSpread | None = None
    """Time until the device has finished; of several ranks, that of the slowest."""
    host_ms: TimeSpread | None = None
    """Time until the call returns, while the device may still work, of the same rank as `wall_ms`."""
    figures: dict[str, float | None] = {}
    """Figures measured by the program itself, whose names have units."""
    wrong_results: WrongResults | None = None
    notes: tuple[str, ...] = ()
    """Peculiarities of the recording."""
    traces: tuple[str, ...] = ()
    """Files by rank, relative to that of the results."""
    analyses: tuple[Analysis, ...] = ()
    """One analysis for each device in each trace."""


class ExperimentResult(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment, run on one machine at one scale."""

    name: str
    title: str
    shows: str
    published_on: str
    faster: tuple[tuple[str, str], ...]
    recorded: str
    """Parts of the timed program that the recordings leave out."""
    gpus: int
    ranks: int
    warmup_steps: int
    recorded_steps: int
    scale: str
    sizes: dict[str, Any]
    sizes_as_published: bool
    date: str
    """Day of the run (UTC)."""
    machine: Machine
    variants: tuple[VariantResult, ...]

    def plain_step_ns(self, variant: VariantResult) -> int | None:
        """Return the timed length of a step of a variant's recordings; None if they don't hold the timed program."""
        return None if self.recorded or variant.wall_ms is None else round(1e6 * variant.wall_ms.median)


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """All results in one directory."""

    kind: Literal["laboratory"] = "laboratory"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    experiments: tuple[ExperimentResult, ...] = ()


# -- The file `results.json` ---------------------------------------------------------------------------


def read_results(directory: Path) -> Results:
    """Return the results in a directory; empty results if it has no `results.json` yet.

    Raises:
        UsageError: If the file can't be used. The text names the file and a remedy.
    """
    path = directory / RESULTS
    try:
        data = disk.read_regular(path)
    except FileNotFoundError:
        return Results()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error}); choose another directory.") from None
    try:
        return decode(data, Results)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{path}: these are not results of the laboratory, or are from another version ({error}); choose "
            "another directory."
        ) from None


def write_results(results: Results, directory: Path) -> None:
    """Replace the directory's results. Raise UsageError if that fails."""
    path = directory / RESULTS
    try:
        disk.write(path, [encode(results, indent=1)])
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error}); choose another directory.") from None


def merged(results: Results, experiment: ExperimentResult) -> Results:
    """Return the results with one experiment added, or replaced by its new run."""
    others = {other.name: other for other in results.experiments}
    return msgspec.structs.replace(results, experiments=tuple((others | {experiment.name: experiment}).values()))
