"""Makes the traces of a large job out of the two of a small one: `python -m benchmarks.ranks_job FOLDER --ranks 64`.

Rank N of the job is one of the two bundled recordings of a data-parallel training (`traces/ddp`), the even ranks the
first, the odd ones the second. Its events stay as they were recorded. The rewritten parts are those that must differ:

- `distributedInfo`, and in each collective the ranks and the size of the process group;
- the clock: hosts of eight ranks each, and each host's clock reads `HOST_OFFSET_NS` more than the one's before it
  (`baseTimeNanoseconds`);
- one late rank: each of its collectives begins `LATE_NS` later than recorded, and ends when it did.

So the truth is known: the offset of each clock, and who is late in which collectives. The result is the same for the
same number of ranks.
"""

from __future__ import annotations

import argparse
import gzip
import re
from pathlib import Path

from msgspec import Struct

RECORDINGS = Path(__file__).parents[1] / "traces" / "ddp"
RANKS_PER_HOST = 8
HOST_OFFSET_NS = 1_234_567
LATE_NS = 100_000
_TORCH_LISTS = 32
"""Torch names the ranks of larger groups by the first ones and the last."""
_COLLECTIVE = re.compile(
    r'("cat": "kernel", "name": "nccl[^\n]*\n    "ts": )(\d+)\.(\d{3})(, "dur": )(\d+)\.(\d{3})(,\n)'
)


class SyntheticJob(Struct, frozen=True):
    """A job of many ranks with its known truth."""

    ranks: int

    @property
    def late(self) -> int:
        """The rank that the others wait for."""
        return self.ranks // 2

    def offset_ns(self, rank: int) -> int:
        """Offset of the clock of a rank's host from that of rank 0."""
        return rank // RANKS_PER_HOST * HOST_OFFSET_NS

    def text(self, rank: int, recording: str) -> str:
        """Return the trace of one rank, out of a recording's text."""
        world = list(range(self.ranks))
        listed = str(world) if self.ranks <= _TORCH_LISTS else f"[0, 1, 2, ..., {self.ranks - 1}]"
        head, events, rest = recording.partition('"traceEvents": [')
        head = re.sub(r'"rank": \d+, "world_size": 2', f'"rank": {rank}, "world_size": {self.ranks}', head)
        head = head.replace('"pg_size": 2, "ranks": [0, 1]', f'"pg_size": {self.ranks}, "ranks": {world}')
        head = re.sub(
            r'("baseTimeNanoseconds": )(\d+)', lambda match: f"{match[1]}{int(match[2]) + self.offset_ns(rank)}", head
        )
        rest = rest.replace('"Group size": 2', f'"Group size": {self.ranks}')
        rest = rest.replace('"Process Group Ranks": "[0, 1]"', f'"Process Group Ranks": "{listed}"')
        if rank == self.late:
            rest = _COLLECTIVE.sub(_begun_later, rest)
        return head + events + rest

    def write(self, folder: Path) -> list[Path]:
        """Write the traces as `rank0.json.gz` and so on, and say where they are."""
        recordings = [gzip.decompress(path.read_bytes()).decode() for path in sorted(RECORDINGS.glob("rank*.json.gz"))]
        paths = [folder / f"rank{rank}.json.gz" for rank in range(self.ranks)]
        for rank, path in enumerate(paths):
            text = self.text(rank, recordings[rank % 2])
            path.write_bytes(gzip.compress(text.encode(), 1, mtime=0))
        return paths


def _begun_later(kernel: re.Match[str]) -> str:
    start_ns, dur_ns = int(kernel[2] + kernel[3]), int(kernel[5] + kernel[6])
    by_ns = min(LATE_NS, dur_ns)
    start, dur = (f"{ns // 1000}.{ns % 1000:03}" for ns in (start_ns + by_ns, dur_ns - by_ns))
    return f"{kernel[1]}{start}{kernel[4]}{dur}{kernel[7]}"


def main() -> None:
    """Write a job's traces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=8, metavar="N")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    SyntheticJob(options.ranks).write(options.folder)


if __name__ == "__main__":
    main()
