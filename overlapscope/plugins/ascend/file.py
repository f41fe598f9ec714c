"""Traces from `trace_view.json`, the Chrome trace that torch_npu's profiler writes for Huawei's Ascend NPUs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from overlapscope.base.marks import METADATA, RECORDER
from overlapscope.reading.file_names import rank_in_name
from overlapscope.reading.files import SourceFile
from overlapscope.reading.source import ReadRequest
from overlapscope.trace.model import Trace

_PROFILER_INFO: Final = re.compile(r"profiler_info_(\d{1,7})\.json")
"""File that torch_npu writes in the directory above, with the rank in its name."""


def read(path: Path, request: ReadRequest) -> Trace:
    """Return the Trace in a file. Raises UnreadableTrace."""
    from overlapscope.plugins.ascend.rows import AscendEvent, rows_of
    from overlapscope.reading import kineto
    from overlapscope.reading._batch import batch_of_events
    from overlapscope.reading._columns import EventColumns
    from overlapscope.reading._progress import ReadingBar
    from overlapscope.reading._stream import events_as

    file = SourceFile(path, limit_bytes=request.limit_bytes)
    with ReadingBar(str(path), file.packed_bytes, request.progress) as bar:
        events, losses = events_as(AscendEvent, file, bar.at)
    rows, devices = rows_of(events)
    columns = EventColumns(str(path))
    columns.add(batch_of_events(rows))
    return kineto.assemble(str(path), columns, _metadata(path, devices), losses, file.unpacked_bytes)


def _metadata(path: Path, devices: list[int]) -> dict[str, Any]:
    """Return the recording's metadata as Kineto would write them."""
    return {
        "deviceProperties": [{"id": device, "name": "Ascend NPU"} for device in devices],
        "distributedInfo": {"rank": _rank(path)},
        METADATA: {RECORDER: "torch_npu"},
    }


def _rank(path: Path) -> int | None:
    """Return the rank in the name of the file, or of torch_npu's file beside its directory."""
    stated = rank_in_name(str(path))
    if stated is not None or path.parent.name != "ASCEND_PROFILER_OUTPUT":
        return stated
    beside = [_PROFILER_INFO.fullmatch(file.name) for file in path.parent.parent.glob("profiler_info_*.json")]
    ranks = [int(match[1]) for match in beside if match is not None]
    return ranks[0] if len(ranks) == 1 else None
