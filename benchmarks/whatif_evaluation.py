"""Predictions held against measurements: every pair of recordings that interventions connect, and every recording
against its own replay."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.noise_measured import unpack
from overlapscope.prediction.base import on_device, prepare
from overlapscope.prediction.interventions import parse
from overlapscope.prediction.predict import conclude
from overlapscope.prediction.result import WhatIf
from overlapscope.reading import load

TRACES = Path(__file__).parents[1] / "traces"
LIST = Path(__file__).with_name("whatif_pairs.toml")
REPEATS = "repeats"
"""Folder of the recordings that are packed (`tests/repeats.tar.xz`)."""
RANKS = ".traces"
"""Ending of the folder of a program's ranks."""
FURTHER, SECOND = TRACES / "further", TRACES / "second"
"""Recorded without computing a prediction. Predictions of the first set have been looked at since."""
PROCESSES = 2


class Connected(msgspec.Struct, frozen=True, array_like=True):
    """Two recordings, the second of which is the first one's program with the interventions."""

    before: str
    after: str
    interventions: tuple[str, ...]
    why: str


class Unconnected(msgspec.Struct, frozen=True, array_like=True):
    """Recordings that no intervention leads to or from."""

    recordings: str
    why: str


class ExperimentFolder(msgspec.Struct, frozen=True):
    """Facts about a folder of recordings."""

    pairs: tuple[Connected, ...]
    unconnected: tuple[Unconnected, ...] = ()


class _Further(msgspec.Struct, frozen=True):
    """A pair that was recorded after the predictions had been built."""

    before: str = msgspec.field(name="from")
    after: str = msgspec.field(name="to")
    interventions: tuple[str, ...]
    why: str = ""


class _FurtherList(msgspec.Struct, frozen=True):
    pairs: tuple[_Further, ...]


class RecordingPair(msgspec.Struct, frozen=True):
    """Two recordings, and the interventions that lead from the first to the second."""

    experiment: str
    """The recordings' folder within `traces`, without what all have in common."""
    before: Path
    after: Path
    interventions: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{name_of(self.before)} to {name_of(self.after)}"


class PredictionRow(msgspec.Struct, frozen=True):
    """A pair's prediction beside the measured step."""

    pair: RecordingPair
    prediction: WhatIf
    measured: WhatIf
    """Prediction of the recording without a change."""

    @property
    def measured_ns(self) -> int:
        """The step of the recording predicted, by the same definition."""
        return self.measured.baseline_step_ns

    @property
    def error_pct(self) -> float | None:
        """Error of the predicted step; None without a prediction."""
        predicted = self.prediction.predicted_step_ns
        return None if predicted is None else 100 * (predicted.value / self.measured_ns - 1)

    @property
    def inside(self) -> bool | None:
        """True if the measured step lies in the interval."""
        predicted = self.prediction.predicted_step_ns
        return None if predicted is None else predicted.low <= self.measured_ns <= predicted.high


class _PredictionTask(msgspec.Struct, frozen=True):
    """A recording, and the sets of interventions to predict from it."""

    path: Path
    asked: tuple[tuple[str, ...], ...]


class Evaluation(msgspec.Struct, frozen=True):
    """All of it."""

    rows: list[PredictionRow]
    replayed: dict[Path, tuple[WhatIf, ...]]
    """Unchanged replay of each recording, by device."""
    failures: list[str]
    """Failures with their tracebacks."""


def folders() -> dict[str, ExperimentFolder]:
    """Return the list of pairs."""
    return msgspec.toml.decode(LIST.read_bytes(), type=dict[str, ExperimentFolder])


@contextmanager
def unpacked() -> Iterator[Path]:
    """Yield a folder that holds the packed recordings for a while."""
    with tempfile.TemporaryDirectory() as name:
        unpack(Path(name))
        yield Path(name)


def pairs(packed: Path) -> list[RecordingPair]:
    """All pairs of the list; `packed` is where the packed recordings have been unpacked."""
    return [
        RecordingPair(experiment_of(folder), _file(place, pair.before), _file(place, pair.after), pair.interventions)
        for folder, content in folders().items()
        for place in [(packed if folder.startswith(REPEATS) else TRACES) / folder]
        for pair in content.pairs
    ]


def further_pairs(place: Path) -> list[RecordingPair]:
    """Return the pairs of a folder that lists them itself."""
    pairs = msgspec.toml.decode((place / "pairs.toml").read_bytes(), type=_FurtherList).pairs
    return [
        RecordingPair(
            Path(pair.before).parent.as_posix(), _file(place, pair.before), _file(place, pair.after), pair.interventions
        )
        for pair in pairs
    ]


def recordings(packed: Path) -> list[Path]:
    """Every bundled recording, the packed ones too."""
    return [*sorted(TRACES.rglob("*.json.gz")), *sorted((packed / REPEATS).rglob("*.trace.json"))]


def place_of(path: Path) -> str:
    """Return the folder of a recording, as the list of pairs has it."""
    folder = path.parent.parent if path.parent.name.endswith(RANKS) else path.parent
    if folder.is_relative_to(TRACES):
        return folder.relative_to(TRACES).as_posix()
    packed = next(parent for parent in path.parents if parent.name == REPEATS)
    return folder.relative_to(packed.parent).as_posix()


def experiment_of(folder: str) -> str:
    """Name of a folder on the page."""
    return folder.removeprefix("laboratory/")


def name_of(path: Path) -> str:
    """Return a recording's name within its experiment: `one_stream`, `offload, rank 0`."""
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".trace")
    if path.parent.name.endswith(RANKS):
        return f"{path.parent.name.removesuffix(RANKS)}, rank {name.removeprefix('rank')}"
    return name


def evaluate(asked: Sequence[RecordingPair], others: Iterable[Path] = ()) -> Evaluation:
    """Each pair predicted and measured, and each recording, also the others, replayed unchanged."""
    wanted: dict[Path, set[tuple[str, ...]]] = {path: {()} for path in others}
    for pair in asked:
        wanted.setdefault(pair.before, {()}).add(pair.interventions)
        wanted.setdefault(pair.after, {()})
    # The largest first, so that no process is left with it in the end.
    jobs = [_PredictionTask(path, tuple(sorted(sets))) for path, sets in wanted.items()]
    jobs.sort(key=lambda job: -job.path.stat().st_size * len(job.asked))
    with ProcessPoolExecutor(PROCESSES) as pool:
        answers = {
            (job.path, interventions): answer
            for job, outcome in zip(jobs, pool.map(_answers, jobs), strict=True)
            for interventions, answer in zip(job.asked, outcome, strict=True)
        }
    complete = {asked: answer for asked, answer in answers.items() if not isinstance(answer, str)}
    return Evaluation(
        rows=[
            PredictionRow(pair, complete[pair.before, pair.interventions][0], complete[pair.after, ()][0])
            for pair in asked
            if (pair.before, pair.interventions) in complete and (pair.after, ()) in complete
        ],
        replayed={path: complete[path, ()] for path in sorted(wanted) if (path, ()) in complete},
        failures=[
            f"{path}: {', '.join(interventions)}\n{answer}"
            for (path, interventions), answer in answers.items()
            if isinstance(answer, str)
        ],
    )


def _answers(job: _PredictionTask) -> list[tuple[WhatIf, ...] | str]:
    """Return the predictions for each set of interventions of each device; or the traceback, since an exception loses
    it on its way from another process."""
    # The step after a change was measured while it was recorded, so it is predicted for the recording, too.
    trace = load(job.path, progress=False, cache=False)
    recorded = prepare(trace, None) if trace.devices else None
    bases = [] if recorded is None else [on_device(recorded, device) for device in trace.devices]
    answers: list[tuple[WhatIf, ...] | str] = []
    for interventions in job.asked:
        try:
            choices = parse(interventions)
            answers.append(tuple(conclude(base, base, choices).result for base in bases))
        except Exception:
            answers.append(traceback.format_exc())
    return answers


def _file(folder: Path, name: str) -> Path:
    """Return the file of a recording. Raises FileNotFoundError if there is none."""
    for ending in (".trace.json.gz", ".json.gz", ".trace.json"):
        path = folder / f"{name}{ending}"
        if path.exists():
            return path
    raise FileNotFoundError(folder / name)
