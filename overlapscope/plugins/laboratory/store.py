"""Reading, merging and atomic writing of `results.json`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from overlapscope.base import disk
from overlapscope.base.saved import decode, encode
from overlapscope.errors import UsageError
from overlapscope.plugins.laboratory import RESULTS
from overlapscope.plugins.laboratory.results import SCHEMA_VERSION, ExperimentResult, Results


class _Version(msgspec.Struct):
    schema_version: int


def read(directory: Path, *, analyses: bool = True) -> Results:
    """Return the results in a directory; empty results if it has no `results.json` yet.

    Without `analyses`, only the measurements are read, whichever version analyzed them.

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
        version = decode(data, _Version).schema_version
        if version == SCHEMA_VERSION:
            return decode(data, Results) if analyses else _measured(data)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{path}: these are not results of the laboratory, or are from another version ({error}); choose "
            "another directory."
        ) from None
    raise UsageError(
        f"{path}: has schema version {version}, and this overlapscope reads version {SCHEMA_VERSION}; choose "
        "another directory."
    )


def _measured(data: bytes) -> Results:
    """Return the results without analyses. Raise msgspec.ValidationError if they are invalid."""
    decoded = msgspec.json.decode(data)
    for experiment in decoded.get("experiments", []):
        for variant in experiment.get("variants", []):
            variant.pop("analyses", None)
    return msgspec.convert(decoded, Results)


def write(results: Results, directory: Path) -> None:
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
