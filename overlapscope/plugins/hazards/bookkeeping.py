"""Books on launches, waits and uses of memory, which show the uses that nothing orders. They do not use CUDA.

"Finished" and "ordered" refer to guarantees by the program, never to the times of a run, so a report does not depend on
luck.

The rules for launches are those of `torch.cuda._sanitizer.EventHandler`, and tests compare the two. That class is not
used itself: it keeps the whole Python stack of every launch, remembers every read until the next write, and compares
only addresses, so it cannot decide whether views overlap. Its clocks are used.
"""

from __future__ import annotations

import linecache
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from overlapscope.base.words import clean, listed, plural
from overlapscope.recorder.program_lines import CodeLine

# -- Bytes of tensors ---------------------------------------------------------------------------------
# Because of views, a comparison of addresses is not enough: chunks of a buffer on several streams do not overlap, and a
# column of a matrix does overlap with each of its rows.

Direction = Literal["h2d", "d2h"]


class Region(NamedTuple):
    """Bytes that begin at `start`: a run of `run` bytes, repeated along each of `steps`. Without steps, an interval."""

    start: int
    end: int
    """Address after the last byte."""
    run: int
    steps: tuple[tuple[int, int], ...] = ()
    """Number of repetitions and distance in bytes of each step, the widest first."""


class Touch(NamedTuple):
    """The part of a storage that a launch reads or writes."""

    base: int
    """Address of the storage, which identifies it while it exists."""
    region: Region
    tensor: object
    """Object whose `str` describes the tensor."""


class Launch(NamedTuple):
    """A kernel or copy that was launched."""

    stream: int
    """Handle of its stream."""
    seq: int
    """Number among all launches."""
    line: CodeLine
    is_collective: bool = False
    """True for a collective on a stream of its own, for which `Work.wait` waits."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy under way, which reads (h2d) or writes (d2h) pinned host memory."""

    direction: Direction
    region: Region
    """Host memory, always an interval: copies of memory with gaps go through a temporary (`operators`)."""
    launch: Launch
    tensor: str


@dataclass(frozen=True, slots=True)
class Use:
    """The use of some memory by a launch."""

    write: bool
    launch: Launch


def interval(start: int, size_bytes: int) -> Region:
    """Return the bytes [start, start + size_bytes)."""
    return Region(start, start + size_bytes, size_bytes)


def strided(start: int, sizes: Sequence[int], strides: Sequence[int], item_bytes: int) -> Region:
    """Return the bytes of a tensor's elements, of which it must have some. Strides are in elements."""
    steps = sorted(
        ((size, stride * item_bytes) for size, stride in zip(sizes, strides, strict=True) if size > 1 and stride > 0),
        key=lambda step: (step[1], step[0]),
    )
    run = item_bytes
    gaps: list[tuple[int, int]] = []
    for count, apart in steps:
        if apart <= run:
            run += (count - 1) * apart
        else:
            gaps.append((count, apart))
    end = start + run + sum((count - 1) * apart for count, apart in gaps)
    return Region(start, end, run, tuple(reversed(gaps)))


def overlap(a: Region, b: Region) -> bool:
    """Return whether they certainly share a byte. The answer is exact if either is an interval.

    Two regions with gaps certainly share a byte only if they begin at the same address: columns of a matrix share none.
    """
    if a.end <= b.start or b.end <= a.start:
        return False
    if not b.steps:
        return _meets(a.start, a.end, a.steps, b)
    if not a.steps:
        return _meets(b.start, b.end, b.steps, a)
    return a.start == b.start


def covers(outer: Region, inner: Region) -> bool:
    """Return whether `outer` is an interval that holds all of `inner`."""
    return not outer.steps and outer.start <= inner.start and inner.end <= outer.end


def _meets(start: int, end: int, steps: tuple[tuple[int, int], ...], whole: Region) -> bool:
    """Return whether the bytes from `start`, repeated along `steps` up to `end`, meet an interval."""
    if end <= whole.start or whole.end <= start:
        return False
    if not steps or whole.start <= start < whole.end:
        return True
    (count, apart), inner = steps[0], steps[1:]
    extent = end - start - (count - 1) * apart
    first = max(0, -((start + extent - 1 - whole.start) // apart))
    last = min(count - 1, (whole.end - 1 - start) // apart)
    return any(_meets(start + i * apart, start + i * apart + extent, inner, whole) for i in range(first, last + 1))


# -- Data races --------------------------------------------------------------------------------------

Kind = Literal["read-while-copied", "overwritten-while-copied", "freed-while-copied", "stream-without-wait"]

MEANING: dict[Kind, str] = {
    "read-while-copied": "a host tensor is read while a copy may still be writing it",
    "overwritten-while-copied": "host memory is overwritten while a copy may still be using it",
    "freed-while-copied": "pinned host memory is freed while a copy may still be using it",
    "stream-without-wait": "a tensor is used on two streams, and the second does not wait for the first",
}
"""A sentence for each kind of hazard."""
_COPY_DOES = {"d2h": "copies into it", "h2d": "copies from it"}
_ACCESS_DOES: dict[Kind, str] = {
    "read-while-copied": "reads it",
    "overwritten-while-copied": "writes it",
    "freed-while-copied": "frees its memory",
}


@dataclass(frozen=True, slots=True)
class HazardPlace:
    """A line of a hazard."""

    file: str
    """File as Python names it; empty without a Python line."""
    line: int
    """Number of the line, counted from 1; 0 if unknown."""
    code: str
    """Text of the line; empty if the file cannot be read."""
    does: str
    """Action of the line on the tensor, such as `copies into it`."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "code outside Python"


@dataclass(frozen=True, slots=True)
class Hazard:
    """Two lines that use the same memory, though nothing orders the second after the first."""

    kind: Kind
    first: HazardPlace
    """Place of the copy, or of the earlier use on the other stream."""
    second: HazardPlace
    """Place of the access that comes too early."""
    tensor: str
    """Description of the tensor when the hazard was first found, such as `float32[100, 3]`."""
    streams: tuple[str, ...]
    """Stream of the copy, or streams of the first and the second use."""
    missing: str
    """Call that would order the two, and its place."""
    count: int = 1
    """Number of times that this pair of lines raced."""


def _stream_name(handle: int) -> str:
    """Return the name of a stream, by its address in CUDA, since torch has no names for streams."""
    return f"stream {handle:#x}" if handle else "the default stream"


def _missing(kind: Kind, earlier: Launch, first: HazardPlace, second: HazardPlace) -> str:
    """Return the call that is missing between a launch and what the host or another stream does too early."""
    if kind != "stream-without-wait":
        if earlier.stream == 0:
            call = "torch.cuda.default_stream().synchronize(), or synchronize() of an event recorded after the copy,"
        else:
            call = f"synchronize() of the stream of {first}, or of an event recorded after the copy,"
        return f"{call} before {second}"
    if earlier.is_collective:
        return f"wait() of the collective of {first} before {second}"
    if earlier.stream == 0:
        return f"torch.cuda.current_stream().wait_stream(torch.cuda.default_stream()) before {second}"
    return f"torch.cuda.current_stream().wait_stream(side) before {second}, where side is the stream of {first}"


def describe(hazard: Hazard) -> str:
    """Return a description of a few lines for a terminal, with the program's texts cleaned of control characters."""
    times = f", {plural(hazard.count, 'time')}" if hazard.count > 1 else ""
    lines = [f"{hazard.kind}{times}: {MEANING[hazard.kind]}"]
    for place in (hazard.first, hazard.second):
        lines.append(f"  {clean(str(place))}  {place.does}")
        if code := place.code.strip():
            lines.append(f"      {clean(code)}")
    lines.append(f"    tensor: {clean(hazard.tensor)}, on {clean(listed(hazard.streams))}")
    lines.append(f"    missing: {clean(hazard.missing)}")
    return "\n".join(lines)


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


_CopyKey = tuple[int, int, Direction, int]
"""Key of a copy: its beginning and end in host memory, its direction, and its stream."""


class Bookkeeping:
    """Notes the actions of the program in their order, and the hazards that follow from them."""

    def __init__(self, clock: LaunchClock, code: Callable[[str, int], str] = linecache.getline) -> None:
        """Open the books. `code(file, line)` returns the text of a line."""
        self._clock = clock
        self._code = code
        self._found: dict[tuple[Kind, CodeLine, CodeLine], Hazard] = {}
        self._seq = 0
        self.copies: dict[_CopyKey, Copy] = {}
        """Copies that may be unfinished as far as the host knows."""
        self._prune_at = _PRUNE_COPIES_FROM
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
                for earlier in self.uses.add(touch.base, touch.region, use):
                    self._unordered(earlier, use, touch.tensor)
        return launch

    def copy_issued(self, direction: Direction, launch: Launch, touch: Touch) -> None:
        """Note that a launch is a copy that may outlast its call; `touch` is its pinned host memory.

        An earlier copy of the same bytes on the same stream finishes before it.
        """
        key = (touch.region.start, touch.region.end, direction, launch.stream)
        if key not in self.copies and len(self.copies) >= self._prune_at:
            self.copies = {
                each: copy for each, copy in self.copies.items() if not _is_finished(copy.launch, self._clock)
            }
            # Only once the number has doubled, so that the cost per copy is small.
            self._prune_at = max(_PRUNE_COPIES_FROM, 2 * len(self.copies))
        self.copies[key] = Copy(direction, touch.region, launch, str(touch.tensor))

    def _meeting(self, region: Region) -> list[_CopyKey]:
        """Return the keys of the copies that read or write any of these bytes, in their order."""
        start, end = region.start, region.end
        # There may be thousands of copies, and an access at every operator.
        near = sorted([key for key in self.copies if key[0] < end and start < key[1]])
        return [key for key in near if overlap(region, self.copies[key].region)]

    def _using(self, region: Region) -> list[Copy]:
        """Return the unfinished copies that read or write any of these bytes, by their addresses."""
        copies = map(self.copies.__getitem__, self._meeting(region))
        return [copy for copy in copies if not _is_finished(copy.launch, self._clock)]

    def conflicts(self, region: Region, *, write: bool) -> list[Copy]:
        """Return the copies that race with the host if it reads or writes memory now."""
        return [copy for copy in self._using(region) if write or copy.direction == "d2h"]

    def host_accessed(self, copies: Iterable[Copy], line: CodeLine, *, write: bool) -> None:
        """Note an access by the host, which had these `conflicts`."""
        self._accessed("overwritten-while-copied" if write else "read-while-copied", copies, line)

    def host_accessed_now(self, region: Region, line: CodeLine, *, write: bool) -> None:
        """Note that the host reads or writes memory."""
        self.host_accessed(self.conflicts(region, write=write), line, write=write)

    def host_unpinned(self, region: Region, line: CodeLine) -> None:
        """Note that pinned memory is freed or unpinned, and that nothing keeps it for the copies that use it."""
        self._accessed("freed-while-copied", self._using(region), line)
        self.host_freed(region)

    def host_freed(self, region: Region) -> None:
        """Note that host memory was freed. Its address may be used again for other data."""
        for key in self._meeting(region):
            del self.copies[key]
        self.uses.forget(region.start)

    # -- Hazards found so far, each pair of lines once with a count ----------------------------------

    @property
    def hazards(self) -> tuple[Hazard, ...]:
        """Hazards found so far, in the order of their discovery."""
        return tuple(self._found.values())

    def _accessed(self, kind: Kind, copies: Iterable[Copy], line: CodeLine) -> None:
        """Note that the host accesses memory at `line` that copies may still be using."""
        for copy in copies:
            does = _COPY_DOES[copy.direction], _ACCESS_DOES[kind]
            self._note(kind, [copy.launch], (copy.launch.line, line), does, copy.tensor)

    def _unordered(self, earlier: Use, later: Use, tensor: object) -> None:
        """Note that a launch uses memory that another stream may still be using."""
        one, other = (
            f"{'writes' if use.write else 'reads'} it on {_stream_name(use.launch.stream)}" for use in (earlier, later)
        )
        launches = [earlier.launch, later.launch]
        self._note("stream-without-wait", launches, (launches[0].line, launches[1].line), (one, other), tensor)

    def _note(
        self,
        kind: Kind,
        launches: list[Launch],
        lines: tuple[CodeLine, CodeLine],
        does: tuple[str, str],
        tensor: object,
    ) -> None:
        """Note that two lines race, and what each does. A pair of lines that raced before is counted."""
        hazard = self._found.get((kind, *lines))
        if hazard is None:
            first, second = (
                HazardPlace(line.file, line.number, self._code(line.file, line.number).strip(), what)
                for line, what in zip(lines, does, strict=True)
            )
            streams = tuple(_stream_name(launch.stream) for launch in launches)
            missing = _missing(kind, launches[0], first, second)
            self._found[kind, *lines] = Hazard(kind, first, second, str(tensor), streams, missing)
        else:
            self._found[kind, *lines] = replace(hazard, count=hazard.count + 1)


def _is_finished(launch: Launch, clock: LaunchClock) -> bool:
    """Return whether the host has synchronized with a launch."""
    return launch.seq <= clock.host_sync_state.get(launch.stream, 0)


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

    def add(self, base: int, region: Region, use: Use) -> list[Use]:
        """Add a use of bytes of the storage at `base`, and return the earlier uses that it races with."""
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


# -- Actions, in order, until they are written into the books ------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")

_MAX_PENDING_CALLS = 1000
"""Number of calls at which `note` writes them itself, in case no operator runs that would."""


class Journal:
    """A queue of calls that are made in the order in which they were noted, until it is closed.

    Calls come on several threads and during others: torch reports an event that the garbage collector deletes while the
    books are being written. So an observer only appends a call, which is atomic in Python, and never waits for a lock.
    The thread that holds the lock makes the calls that the others have appended.
    """

    def __init__(self, failed: Callable[[Exception], object]) -> None:
        """Open the journal. `failed(error)` is called if an error closes it; no exception reaches the program."""
        self.is_open = True
        self._failed = failed
        self._calls: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()

    def note(self, call: Callable[[], object]) -> None:
        """Append a call."""
        if self.is_open:
            self._calls.append(call)
            if len(self._calls) > _MAX_PENDING_CALLS:
                self.write_up()

    def write_up(self) -> None:
        """Make the calls noted so far, unless another thread is making them."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            while self._calls:
                self._calls.popleft()()
        except Exception as error:
            self._fail(error)
        finally:
            self._lock.release()

    def attempt(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Make a call now, and return its result, or None if it fails."""
        try:
            return call(*args, **kwargs)
        except Exception as error:
            self._fail(error)
            return None

    def close(self) -> None:
        """Ignore later calls."""
        self.is_open = False
        self._calls.clear()

    def _fail(self, error: Exception) -> None:
        self.close()
        self._failed(error)
