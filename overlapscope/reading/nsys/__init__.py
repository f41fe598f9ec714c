"""Traces from the databases that `nsys export --type sqlite` makes of Nsight Systems' reports."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from overlapscope.reading._formats import SQLITE
from overlapscope.reading.source import ReadRequest, Source
from overlapscope.trace.model import Trace


def _recognises(head: bytes) -> bool:
    return head.startswith(SQLITE)


def _read(path: Path, request: ReadRequest) -> Trace:
    # Imported here because most traces are not databases.
    from overlapscope.reading.nsys.report import read

    return read(path, request)


def _parts(path: Path) -> int:
    from overlapscope.reading.nsys.report import processes_of

    return len(processes_of(path))


SOURCE: Final = Source("nsys", (".sqlite",), _recognises, _read, _parts)
