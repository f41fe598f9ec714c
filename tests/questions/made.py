"""Files that are asked about besides `traces/`: recordings unpacked, broken or cut, and a history."""

from __future__ import annotations

import gzip
import json
import lzma
import tarfile
from pathlib import Path

from tests.plugins.history.histories import write
from tests.support.helpers import TRACES

GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
REPORTS = ("offload_2gpu", "one_copy", "train_2gpu")


def make(directory: Path) -> None:
    """Write the recordings that the questions are about into the directory."""
    for name in REPORTS:
        (directory / f"{name}.sqlite").write_bytes(lzma.decompress((TRACES / f"nsys/{name}.sqlite.xz").read_bytes()))
    with tarfile.open(TRACES.parent / "tests/plain.tar.xz", "r|xz") as recordings:
        for member in recordings:
            if member.name == "./volumes/before.trace.json":
                unpacked = recordings.extractfile(member)
                assert unpacked is not None
                (directory / "volumes.json").write_bytes(unpacked.read())
                break
    text = gzip.decompress((TRACES / "known_causes/host_sync.json.gz").read_bytes())
    (directory / "cut_off.json").write_bytes(text[: len(text) * 3 // 4])
    whole = json.loads(text)
    whole["traceEvents"] = [event for event in whole["traceEvents"] if event.get("cat") not in GPU_CATEGORIES]
    (directory / "cpu_only.json").write_text(json.dumps(whole))
    write(directory / "history.sqlite")
