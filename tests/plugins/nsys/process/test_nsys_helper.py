"""A process that helps to read a large report changes nothing, whatever becomes of it."""

from __future__ import annotations

import lzma
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import fields

from overlapscope.plugins.nsys import helper, host
from overlapscope.reading import load
from overlapscope.trace.model import Trace, TraceTable
from tests.support.helpers import TRACES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has helpers")


def read(folder: Path) -> Trace:
    path = folder / "train_2gpu.sqlite"
    path.write_bytes(lzma.decompress((TRACES / "nsys" / "train_2gpu.sqlite.xz").read_bytes()))
    return load(f"{path}@0", cache=False)


def texts_of(table: TraceTable, column: str) -> list[str]:
    if column == "name_id":
        return [table.name(row) for row in range(len(table))]
    return [str(value) for value in getattr(table, column).tolist()]


@pytest.mark.parametrize("end", ["well", "killed", "early"])
def test_a_helper_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    alone = read(tmp_path)
    parent, ours = os.getpid(), host.operators_and_ranges
    readers: list[int] = []

    def reads(*arguments: object) -> object:
        readers.append(os.getpid())
        if os.getpid() != parent and end != "well":
            os._exit(0) if end == "early" else os.kill(os.getpid(), 9)
        return ours(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(host, "operators_and_ranges", reads)
    monkeypatch.setattr(helper, "_LEAST_ROWS", 1)
    monkeypatch.setattr(helper, "usable_cores", lambda: 2)
    monkeypatch.setattr(helper, "_alone", lambda: True)
    helped = read(tmp_path)
    # This process did not do the helper's work.
    assert readers == ([] if end == "well" else [parent])
    for field in fields(Trace):
        first, other = getattr(helped, field.name), getattr(alone, field.name)
        if not isinstance(first, TraceTable):
            assert field.name == "names" or first == other
            continue
        for column in fields(first):
            if column.name != "names":
                assert texts_of(first, column.name) == texts_of(other, column.name), (field.name, column.name)
    assert np.array_equal(np.sort(np.array(helped.names)), np.sort(np.array(alone.names)))
