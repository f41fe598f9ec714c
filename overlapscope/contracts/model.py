"""The contract as frozen structures, whose field names are the keys of its file (`docs/guides/contracts.md`)."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from overlapscope.budgets.gate import Program

VERSION: Final = 1
DEFAULT_MARGIN_PCT: Final = 25
"""Share of the kernels, launches or copies by which a number may change without meaning."""

_Count = Annotated[int, Meta(ge=0, description="a whole number, 0 or more")]
_Text = Annotated[str, Meta(description="a string")]


class CallPlace(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happens at a place of the program in a typical step."""

    op: _Text = ""
    """Outermost CPU op around the call; empty if the recording has none."""
    line: _Text = ""
    """Line of the program, such as `train.py:88 in step`; empty unless the recording has stacks."""
    count: _Count = 1
    """Number in a typical step."""


class TransferGroup(CallPlace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copies or collectives that are the same by kind, memory, size and place."""

    kind: _Text
    """`H2D`, `D2H`, or the name of a collective with its group."""
    memory: _Text = ""
    """Memory on the host's side of a copy: pinned, pageable, managed or unknown."""
    bytes: _Count = 0
    """Size of each; 0 if unknown."""
    kernels_before: _Count | None = None
    """Number of kernels launched before it that may still run beside it; None if unknown."""
    kernels_after: _Count | None = None
    """Number of kernels launched after it that may begin while it runs; None if unknown."""
    up_to: _Count | None = None
    """Number of kernels on both sides at best, if the numbers are only the certain part of them; else None."""
    alone: _Count | None = None
    """Number in a typical step that may run beside no kernel, at worst; None if unknown."""
    begins: _Text = ""
    """Kernel that it comes after, and the reason."""
    ends: _Text = ""
    """Kernel that comes after it, and the reason."""

    @property
    def kernels(self) -> int | None:
        """Number of kernels beside which it may run for certain; None if unknown."""
        if self.kernels_before is None or self.kernels_after is None:
            return None
        return self.kernels_before + self.kernels_after


class HostCall(CallPlace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of the host in which it waits for the device, or allocates memory of the driver."""

    call: _Text


class Recorded(Program, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The program that a contract is of, and what its recording had."""

    recorder: _Text = ""
    ranks: _Count = 1
    devices: _Count = 1
    """Number of devices that the rank used."""


class Contract(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copies, collectives and waits of a typical step, and the kernels beside which they may run."""

    version: int = VERSION
    written_by: _Text = ""
    margin_pct: Annotated[int, Meta(ge=0, le=99, description="a whole number from 0 to 99")] = DEFAULT_MARGIN_PCT
    replaces: tuple[_Text, ...] = ()
    """Default rules, or `verdict`, that don't judge a program with this contract. Only people write it."""
    program: Recorded = Recorded()
    steps: _Count = 0
    """Number of steps that the recording had."""
    kernels: _Count | None = None
    """Number of kernels that compute in a typical step; None if the recording shows nothing of the GPU.

    All kernels of one `aten::` op count as one, here and beside copies.
    """
    launches: _Count | None = None
    """Number of calls that launch work; all of one `aten::` op count as one."""
    graph_launches: _Count | None = None
    loader: _Text = ""
    """Class of the DataLoader's iterator, which states whether worker processes load; empty without one."""
    unknown: tuple[_Text, ...] = ()
    """Gaps of the recording, in sentences."""
    copies: tuple[TransferGroup, ...] = ()
    collectives: tuple[TransferGroup, ...] = ()
    syncs: tuple[HostCall, ...] = ()
    """Calls in which the host waits for the GPU."""
    allocations: tuple[HostCall, ...] = ()
    """Calls that allocate or free memory of the driver."""
