"""Uses of memory by kernels and copies, and which of them no wait between streams has ordered.

The rules are those of torch's own `torch.cuda._sanitizer.EventHandler`, and tests hold the two against each other. It
is not used itself: it walks and keeps the whole Python stack of every launch, remembers every read until the next
write, and compares addresses only, so that it cannot tell whether views meet. Its clocks are used: see `bookkeeping`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from overlapscope.recorder.hazards.lines import Line
from overlapscope.recorder.hazards.memory import Region, covers, overlap

_PRUNE_FROM = 16


@dataclass(frozen=True, slots=True)
class Use:
    """One launch's use of some memory."""

    write: bool
    stream: int
    """Handle of its stream, and its number among all launches."""
    seq: int
    line: Line


@dataclass(slots=True)
class _Past:
    """What happened to some bytes last: a write, and the latest read behind it on each stream."""

    region: Region
    write: Use | None = None
    reads: dict[int, Use] = field(default_factory=dict)

    def before_a_write(self) -> Iterable[Use]:
        """What a write must wait for: reads waited for the write before them, or that was a race of its own."""
        if self.reads or self.write is None:
            return self.reads.values()
        return (self.write,)


class DeviceUses:
    """The latest uses of all memory that launches read or write."""

    def __init__(self, ordered: Callable[[Use, Use], bool], finished: Callable[[int, int], bool]) -> None:
        """`ordered(earlier, later)` says whether the later one's stream waits for the earlier one.

        `finished(stream, seq)` says whether the host has synchronised with that launch, and so all that comes.
        """
        self._ordered = ordered
        self._finished = finished
        self._pasts: dict[int, list[_Past]] = {}

    def use(self, base: int, region: Region, use: Use) -> list[Use]:
        """Note a use of bytes of the storage at `base`; returns the earlier ones it races with."""
        pasts = self._pasts.setdefault(base, [])
        if len(pasts) >= _PRUNE_FROM:
            pasts[:] = [past for past in pasts if not self._over(past)]
        return self._write(pasts, region, use) if use.write else self._read(pasts, region, use)

    def forget(self, base: int) -> None:
        """The storage is gone: whatever has the same address next is something else."""
        self._pasts.pop(base, None)

    def _read(self, pasts: list[_Past], region: Region, use: Use) -> list[Use]:
        races: list[Use] = []
        own: _Past | None = None
        for past in pasts:
            if past.region == region:
                own = past
            elif not overlap(past.region, region):
                continue
            if past.write is not None and not self._ordered(past.write, use):
                races.append(past.write)
        if own is None:
            own = _Past(region)
            pasts.append(own)
        own.reads[use.stream] = use
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

    def _over(self, past: _Past) -> bool:
        uses = [*past.reads.values(), *([past.write] if past.write else [])]
        return all(self._finished(use.stream, use.seq) for use in uses)
