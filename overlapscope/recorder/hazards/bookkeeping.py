"""What ran where, what waits for what, and which uses of memory nothing has ordered. Knows nothing of CUDA.

"Finished" and "ordered" are meant as what the program made sure of, never as what happened in time: a report does not
depend on luck.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from overlapscope.recorder.hazards.copies import Copy, Direction, HostCopies
from overlapscope.recorder.hazards.findings import Findings
from overlapscope.recorder.hazards.hazard import Kind
from overlapscope.recorder.hazards.lines import Line
from overlapscope.recorder.hazards.memory import Region
from overlapscope.recorder.hazards.uses import DeviceUses, Use


class Clock(Protocol):
    """The part of `torch.cuda._sanitizer.StreamSynchronizations` that says what is ordered behind what.

    Its other methods take the events: `record_state`, `stream_wait_for_event`, `sync_all_streams`...
    """

    host_sync_state: dict[int, int]
    """The number of the last launch on each stream that the host has synchronised with."""

    def update_seq_num(self, stream: int, seq_num: int) -> None:
        """A launch with that number, larger than any before, goes to a stream."""

    def is_ordered_after(self, current_stream: int, seq_num: int, other_stream: int) -> bool:
        """Whether what is launched on a stream from now on waits for a launch on another."""


class Touch(NamedTuple):
    """The part of a storage that a launch reads or writes."""

    base: int
    """The storage's address, which names it for as long as it lives."""
    region: Region
    tensor: object
    """Its `str` describes the tensor, should it be needed."""


class Bookkeeping:
    """Takes what the program does, in its order, and collects the hazards."""

    def __init__(self, clock: Clock, findings: Findings) -> None:
        self._clock = clock
        self._findings = findings
        self._seq = 0
        self.copies = HostCopies(self._finished)
        self.uses = DeviceUses(self._ordered, self._finished)

    def launched(self, stream: int, reads: Iterable[Touch], writes: Iterable[Touch], line: Line) -> int:
        """A kernel or copy was launched; returns its number."""
        self._seq += 1
        self._clock.update_seq_num(stream, self._seq)
        for write, touches in ((False, reads), (True, writes)):
            use = Use(write, stream, self._seq, line)
            for touch in touches:
                for earlier in self.uses.use(touch.base, touch.region, use):
                    self._findings.unordered(earlier, use, touch.tensor)
        return self._seq

    def copy_issued(self, direction: Direction, stream: int, seq: int, touch: Touch, line: Line) -> None:
        """The launch `seq` is a copy that may outlast its call; `touch` is its pinned host memory."""
        self.copies.issue(Copy(direction, touch.region, stream, seq, line, str(touch.tensor)))

    def conflicts(self, region: Region, *, write: bool) -> list[Copy]:
        """The copies that the host must not meet when it reads or writes memory now."""
        return self.copies.using(region) if write else self.copies.written_in(region)

    def host_accessed(self, copies: Iterable[Copy], line: Line, *, write: bool) -> None:
        """The host did, and these were its `conflicts` then."""
        self._accessed("overwritten-while-copied" if write else "read-while-copied", copies, line)

    def host_read(self, region: Region, line: Line) -> None:
        """The host reads memory."""
        self.host_accessed(self.conflicts(region, write=False), line, write=False)

    def host_wrote(self, region: Region, line: Line) -> None:
        """The host writes memory."""
        self.host_accessed(self.conflicts(region, write=True), line, write=True)

    def host_unpinned(self, region: Region, line: Line) -> None:
        """Pinned memory is given back, or is pinned no longer, and nothing keeps it for the copies that use it."""
        self._accessed("freed-while-copied", self.copies.using(region), line)
        self.host_freed(region)

    def host_freed(self, region: Region) -> None:
        """Host memory is gone, and its address may come back as something else."""
        self.copies.forget(region)
        self.uses.forget(region.start)

    def _accessed(self, kind: Kind, copies: Iterable[Copy], line: Line) -> None:
        for copy in copies:
            self._findings.host_access(kind, copy, line)

    def _finished(self, stream: int, seq: int) -> bool:
        return seq <= self._clock.host_sync_state.get(stream, 0)

    def _ordered(self, earlier: Use, later: Use) -> bool:
        return self._clock.is_ordered_after(later.stream, earlier.seq, earlier.stream)
