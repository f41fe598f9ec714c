"""The installed HTA: which one it is, that it is there, and that it is quiet."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from overlapscope.errors import MissingPackage

DISTRIBUTIONS = ("traceinsight", "HolisticTraceAnalysis")
"""HTA's present name and the one it had before 0.6. Both install the package `hta`."""


def require() -> tuple[str, str]:
    """Name and version of HTA.

    Raises MissingPackage where there is none, or where two overwrite one another.
    """
    versions = {name: version for name in DISTRIBUTIONS if (version := _version(name)) is not None}
    if len(versions) > 1:
        raise MissingPackage(
            "traceinsight and HolisticTraceAnalysis are both installed, and each overwrites files of the other: "
            "pip uninstall traceinsight HolisticTraceAnalysis, then pip install 'overlapscope[hta]'."
        )
    if not versions or find_spec("hta") is None:
        raise MissingPackage("this needs HolisticTraceAnalysis: pip install 'overlapscope[hta]'.")
    return next(iter(versions.items()))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """While it lasts HTA neither logs, nor warns, nor prints. For one thread at a time."""
    logger, root = logging.getLogger("hta"), logging.getLogger()
    disabled, logger.disabled = logger.disabled, True
    # Here and there HTA logs to the root, which would set up a handler for all to come.
    nowhere = logging.NullHandler()
    root.addHandler(nowhere)
    root.addFilter(_of_others)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeFilter(_of_others)
        root.removeHandler(nowhere)
        logger.disabled = disabled


def _of_others(record: logging.LogRecord) -> bool:
    spec = find_spec("hta")
    return spec is None or spec.origin is None or not record.pathname.startswith(str(Path(spec.origin).parent))


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
