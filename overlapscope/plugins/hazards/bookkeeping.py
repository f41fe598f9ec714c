"""Books on launches, waits and uses of memory, which show the uses that nothing orders. They do not use CUDA.

"Finished" and "ordered" refer to guarantees by the program, never to the times of a run, so a report does not depend on
luck.

The rules for launches are those of `torch.cuda._sanitizer.EventHandler`, and tests compare the two. That class is not
used itself: it keeps the whole Python stack of every launch, remembers every read until the next write, and compares
only addresses, so it cannot decide whether views overlap. Its clocks are used.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from overlapscope.plugins.hazards.findings import Findings, Kind
from overlapscope.plugins.hazards.lines import CodeLine
from overlapscope.plugins.hazards.memory import Copy, Direction, Launch, Region, Touch, Use, covers, overlap

_PRUNE_COPIES_FROM = 64
_PRUNE_USES_FROM = 16


class LaunchClock(Protocol):
    """The part of `torch.cuda._sanitizer.StreamSynchronizations` that answers questions about order.

    Its other methods receive the events: `record_state`, `stream_wait_for_event`, `sync_all_streams`...
    """

    host_sync_state: dict[int, int]
    """Number of the last launch on each stream that the host has synchronized with."""

    def update_seq_num(self, stream: int, seq_num: int) -> None:
        """Note a launch on a stream, with a number larger than any before."""

    def is_ordered_after(self, current_stream: int, seq_num: int, other_stream: int) -> bool:
        """Return whether future launches on a stream wait for a launch on another stream."""


class Bookkeeping:
    """Notes the actions of the program in their order, and collects the hazards."""

    def __init__(self, clock: LaunchClock, findings: Findings) -> None:
        self._clock = clock
        self._findings = findings
        self._seq = 0
        self.copies = HostCopies(clock)
        self.uses = DeviceUses(clock)

    def launched(
        self,
        stream: int,
        reads: Iterable[Touch],
        writes: Iterable[Touch],
        line: CodeLine,
        *,
        is_collective: bool = False,
    ) -> Launch:
        """Note the launch of a kernel or copy."""
        self._seq += 1
        self._clock.update_seq_num(stream, self._seq)
        launch = Launch(stream, self._seq, line, is_collective)
        for write, touches in ((False, reads), (True, writes)):
            use = Use(write, launch)
            for touch in touches:
                for earlier in self.uses.use(touch.base, touch.region, use):
                    self._findings.unordered(earlier, use, touch.tensor)
        return launch

    def copy_issued(self, direction: Direction, launch: Launch, touch: Touch) -> None:
        """Note that a launch is a copy that may outlast its call; `touch` is its pinned host memory."""
        self.copies.issue(Copy(direction, touch.region, launch, str(touch.tensor)))

    def conflicts(self, region: Region, *, write: bool) -> list[Copy]:
        """Return the copies that race with the host if it reads or writes memory now."""
        return [copy for copy in self.copies.using(region) if write or copy.direction == "d2h"]

    def host_accessed(self, copies: Iterable[Copy], line: CodeLine, *, write: bool) -> None:
        """Note an access by the host, which had these `conflicts`."""
        self._accessed("overwritten-while-copied" if write else "read-while-copied", copies, line)

    def host_accessed_now(self, region: Region, line: CodeLine, *, write: bool) -> None:
        """Note that the host reads or writes memory."""
        self.host_accessed(self.conflicts(region, write=write), line, write=write)

    def host_unpinned(self, region: Region, line: CodeLine) -> None:
        """Note that pinned memory is freed or unpinned, and that nothing keeps it for the copies that use it."""
        self._accessed("freed-while-copied", self.copies.using(region), line)
        self.host_freed(region)

    def host_freed(self, region: Region) -> None:
        """Note that host memory was freed. Its address may be used again for other data."""
        self.copies.forget(region)
        self.uses.forget(region.start)

    def _accessed(self, kind: Kind, copies: Iterable[Copy], line: CodeLine) -> None:
        for copy in copies:
            self._findings.host_access(kind, copy, line)


def _is_finished(launch: Launch, clock: LaunchClock) -> bool:
    """Return whether the host has synchronized with a launch."""
    return launch.seq <= clock.host_sync_state.get(launch.stream, 0)


_CopyKey = tuple[int, int, Direction, int]
"""Key of a copy: its beginning and end in host memory, its direction, and its stream."""


class HostCopies:
    """Copies that may be unfinished as far as the host knows, by the host memory that they use."""

    def __init__(self, clock: LaunchClock) -> None:
        self._clock = clock
        self._copies: dict[_CopyKey, Copy] = {}
        # Sorted by address, so that an access looks only at its neighbors.
        self._keys: list[_CopyKey] = []
        self._longest = 0
        self._prune_at = _PRUNE_COPIES_FROM

    def __bool__(self) -> bool:
        return bool(self._copies)

    def issue(self, copy: Copy) -> None:
        """Note a copy. An earlier copy of the same bytes on the same stream finishes before it."""
        key = (copy.region.start, copy.region.end, copy.direction, copy.launch.stream)
        if key not in self._copies:
            if len(self._copies) >= self._prune_at:
                self._prune()
            insort(self._keys, key)
            self._longest = max(self._longest, copy.region.run)
        self._copies[key] = copy

    def using(self, region: Region) -> list[Copy]:
        """Return the unfinished copies that read or write any of these bytes."""
        copies = map(self._copies.__getitem__, self._near(region))
        return [copy for copy in copies if overlap(region, copy.region) and not _is_finished(copy.launch, self._clock)]

    def forget(self, region: Region) -> None:
        """Forget memory that was freed, since its address may be used again for other data."""
        self._drop({key for key in self._near(region) if overlap(region, self._copies[key].region)})

    def _near(self, region: Region) -> Iterator[_CopyKey]:
        for index in range(bisect_left(self._keys, (region.start - self._longest,)), len(self._keys)):
            if self._keys[index][0] >= region.end:
                return
            yield self._keys[index]

    def _prune(self) -> None:
        """Drop finished copies. The next time is when the number has doubled, so the cost per copy is small."""
        self._drop({key for key, copy in self._copies.items() if _is_finished(copy.launch, self._clock)})
        self._prune_at = max(_PRUNE_COPIES_FROM, 2 * len(self._copies))

    def _drop(self, gone: set[_CopyKey]) -> None:
        if gone:
            for key in gone:
                del self._copies[key]
            self._keys = [key for key in self._keys if key not in gone]
            self._longest = max((copy.region.run for copy in self._copies.values()), default=0)


@dataclass(slots=True)
class _Past:
    """Latest uses of some bytes: a write, and the latest read after it on each stream."""

    region: Region
    write: Use | None = None
    reads: dict[int, Use] = field(default_factory=dict)

    def before_a_write(self) -> Iterable[Use]:
        """Return the uses that a write must wait for: reads have waited for the write before them, or have raced."""
        if self.reads or self.write is None:
            return self.reads.values()
        return (self.write,)

    def is_over(self, clock: LaunchClock) -> bool:
        """Return whether the host, and so all later work, has synchronized with these uses."""
        uses = [*self.reads.values(), *([self.write] if self.write else [])]
        return all(_is_finished(use.launch, clock) for use in uses)


class DeviceUses:
    """Latest uses of all memory that launches read or write."""

    def __init__(self, clock: LaunchClock) -> None:
        self._clock = clock
        self._pasts: dict[int, list[_Past]] = {}

    def use(self, base: int, region: Region, use: Use) -> list[Use]:
        """Note a use of bytes of the storage at `base`, and return the earlier uses that it races with."""
        pasts = self._pasts.setdefault(base, [])
        if len(pasts) >= _PRUNE_USES_FROM:
            pasts[:] = [past for past in pasts if not past.is_over(self._clock)]
        return self._write(pasts, region, use) if use.write else self._read(pasts, region, use)

    def forget(self, base: int) -> None:
        """Forget a storage that was freed, since its address may be used again for other data."""
        self._pasts.pop(base, None)

    def _read(self, pasts: list[_Past], region: Region, use: Use) -> list[Use]:
        races: list[Use] = []
        same_region: _Past | None = None
        for past in pasts:
            if past.region == region:
                same_region = past
            elif not overlap(past.region, region):
                continue
            if past.write is not None and not self._ordered(past.write, use):
                races.append(past.write)
        if same_region is None:
            same_region = _Past(region)
            pasts.append(same_region)
        same_region.reads[use.launch.stream] = use
        return races

    def _write(self, pasts: list[_Past], region: Region, use: Use) -> list[Use]:
        races: list[Use] = []
        kept: list[_Past] = []
        for past in pasts:
            if overlap(past.region, region):
                races += [earlier for earlier in past.before_a_write() if not self._ordered(earlier, use)]
                if past.region == region or covers(region, past.region):
                    continue
            kept.append(past)
        pasts[:] = [*kept, _Past(region, use)]
        return races

    def _ordered(self, earlier: Use, later: Use) -> bool:
        """Return whether the stream of the later use waits for the earlier use."""
        first = earlier.launch
        return self._clock.is_ordered_after(later.launch.stream, first.seq, first.stream)
