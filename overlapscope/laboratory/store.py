"""`results.json`: read, merged and written so that it is whole at any moment."""

from __future__ import annotations

from pathlib import Path

import msgspec

from overlapscope.base import disk
from overlapscope.base.saved import decode, encode
from overlapscope.errors import UsageError
from overlapscope.laboratory.results import FILE, SCHEMA_VERSION, ExperimentResult, Results


class _Version(msgspec.Struct):
    schema_version: int


def read(directory: Path, *, analyses: bool = True) -> Results:
    """The results in a directory; none where it has no `results.json` yet.

    Without `analyses` what was measured is read alone, whichever version analysed it.

    Raises UsageError where the file cannot be used, with its name and what to do.
    """
    path = directory / FILE
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
    """Raises msgspec.ValidationError."""
    decoded = msgspec.json.decode(data)
    for experiment in decoded.get("experiments", []):
        for variant in experiment.get("variants", []):
            variant.pop("analyses", None)
    return msgspec.convert(decoded, Results)


def write(results: Results, directory: Path) -> None:
    """Replace the directory's results. Raises UsageError where that cannot be done."""
    path = directory / FILE
    try:
        disk.write(path, [encode(results, indent=1)])
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error}); choose another directory.") from None


def merged(results: Results, experiment: ExperimentResult) -> Results:
    """The results with one experiment put in, in place of an earlier run of it."""
    others = {known.name: known for known in results.experiments}
    return msgspec.structs.replace(results, experiments=tuple((others | {experiment.name: experiment}).values()))
