"""The contract of a program, and its file: TOML that people read and edit."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct, structs

from overlapscope.base import disk
from overlapscope.base.words import clean, listed, plural, size
from overlapscope.compare.doubts import ProgramIdentity
from overlapscope.errors import ConfigError
from overlapscope.trace.model import Memory

VERSION: Final = 1
_COPY_KINDS: Final = ("H2D", "D2H", "P2P")
DEFAULT_MARGIN_PCT: Final = 25
"""Share of the kernels, launches or copies by which a number may change without meaning."""

_Count = Annotated[int, Meta(ge=0)]


class CallPlace(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happens at a place of the program in a typical step."""

    op: str
    """Outermost CPU op around the call; empty if the recording has none."""
    line: str
    """Line of the program, such as `train.py:88 in step`; empty unless the recording has stacks."""
    count: _Count
    """Number in a typical step."""


class Beside(NamedTuple):
    """Copies or collectives of a group that may run beside equally many kernels each."""

    times: _Count
    """Number of the copies or collectives."""
    least: _Count
    """Number of kernels of which it is certain, by order or by sight, that they don't wait for it, nor it for them."""
    most: _Count
    """Number at best: larger if the recording doesn't state what some waits are for."""


class TransferGroup(CallPlace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copies or collectives that are the same by kind, memory, size and place."""

    kind: str
    """`H2D`, `D2H`, `P2P`, or the name of a collective with its group."""
    memory: str
    """Memory on the host's side of a copy: pinned, pageable, managed or unknown; else empty."""
    bytes: _Count
    """Size of each; 0 if unknown."""
    beside: tuple[Beside, ...]
    """The kernels beside which each may run, ascending."""
    begins: str = ""
    """Kernel that it comes after, and the reason."""
    ends: str = ""
    """Kernel that comes after it, and the reason."""

    def __post_init__(self) -> None:
        copies = sum(run.times for run in self.beside)
        if copies != self.count:
            raise ValueError(f"`beside` is for {copies:,} of {self.count:,}")

    @property
    def promised(self) -> int:
        """Number of them that may run beside some kernel for certain."""
        return sum(run.times for run in self.beside if run.least)

    @property
    def not_promised(self) -> int:
        """Number of them that may or may not run beside kernels, as far as the recording shows."""
        return sum(run.times for run in self.beside if run.most and not run.least)


class HostCall(CallPlace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of the host in which it waits for the device, or allocates memory of the driver."""

    call: str


class ContractProgram(ProgramIdentity, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The program that a contract is of, and what its recording had."""

    recorder: str = ""
    ranks: _Count = 1
    devices: _Count = 1
    """Number of devices that the rank used."""


class Contract(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copies, collectives and waits of a typical step, and the kernels beside which they may run."""

    version: int = VERSION
    written_by: str = ""
    margin_pct: Annotated[int, Meta(ge=0, le=99)]
    replaces: tuple[str, ...] = ()
    """Default rules, or `verdict`, that don't judge a program with this contract. Only people write it."""
    program: ContractProgram = ContractProgram()
    steps: _Count
    """Number of steps that the recording had."""
    kernels: _Count
    """Number of kernels that compute in a typical step.

    All kernels of one `aten::` op count as one, here and beside copies.
    """
    launches: _Count
    """Number of calls that launch work; all of one `aten::` op count as one. 0: the GPU isn't recorded."""
    graph_launches: _Count
    unrecorded_copies: _Count
    """Number of calls that copy without a record of the GPU, and of copies without a call."""
    loader: str
    """Class of the DataLoader's iterator, which states whether worker processes load; empty without one."""
    host_ops: _Count | None = None
    """Number of outermost ops on the thread of the steps, if the program uses no GPU; else None."""
    unknown: tuple[str, ...]
    """Gaps of the recording, in sentences."""
    copies: tuple[TransferGroup, ...] = ()
    collectives: tuple[TransferGroup, ...] = ()
    syncs: tuple[HostCall, ...] = ()
    """Calls in which the host waits for the GPU; without a GPU, those that read a value of a tensor."""
    allocations: tuple[HostCall, ...] = ()
    """Calls that allocate or free memory of the driver."""

    def __post_init__(self) -> None:
        memories = ["", *(memory.name.lower() for memory in Memory)]
        for copy in self.copies:
            if copy.kind not in _COPY_KINDS or copy.memory not in memories:
                raise ValueError(f"no copy is of kind {copy.kind!r} and memory {copy.memory!r}")

    @property
    def transfers(self) -> tuple[TransferGroup, ...]:
        """Copies and collectives."""
        return (*self.copies, *self.collectives)

    @property
    def not_promised(self) -> str:
        """Sentence on the copies and collectives of which neither order nor sight shows overlap; empty without any."""
        groups = [group for group in self.transfers if group.not_promised]
        if not groups:
            return ""
        copies, others = (sum(g.not_promised for g in of if g.not_promised) for of in (self.copies, self.collectives))
        counts = [plural(number, noun) for number, noun in ((copies, "copy"), (others, "collective")) if number]
        promise, they = ("promises", "it") if copies + others == 1 else ("promise", "they")
        return (
            f"{' and '.join(counts)} a step {promise} nothing here: {they} ran beside no kernel, and the recording "
            f"doesn't state whether {they} may. {' '.join(self.unknown)}"
        ).strip()


# -- File --------------------------------------------------------------------------------------------

_COMMENTS: Final = {
    "copies": (
        "Groups of the same kind, memory, size and place. In `beside`, [2, 14, 20] is for two copies of which each may",
        "run beside 14 kernels for certain, and at best beside 20: the purpose of some waits isn't recorded.",
    ),
    "collectives": ("Collectives, in the same form.",),
    "syncs": ("Calls in which the host waits for the GPU. There may be no others.",),
    "allocations": (
        "Calls that allocate or free memory of the driver, in steps that have any. There may be no others.",
    ),
}
_HEAD: Final = (
    "What may overlap in a typical step, by the order of the program's calls, whatever time they take.",
    "`overlapscope check` fails when it is lost. Edit or remove entries, or renew all: `overlapscope contract update`.",
)


def to_toml(contract: Contract) -> str:
    """Return the contract as the text of its file."""
    return "".join(f"{line}\n" for line in _lines(contract))


def _lines(contract: Contract) -> Iterator[str]:
    yield from (f"# {line}" for line in _HEAD)
    yield from (f"{key} = {_value(value)}" for key, value in _given(contract) if key not in (*_COMMENTS, "program"))
    for key in _COMMENTS:
        places: tuple[CallPlace, ...] = getattr(contract, key)
        first = "copies" if key == "collectives" and not contract.copies else key
        if places:
            yield from ("", *(f"# {line}" for line in _COMMENTS[first]))
        for place in places:
            yield from ("", f"[[{key}]]")
            for name, value in _given(place):
                note = f"  # {size(value)}" if name == "bytes" else ""
                yield f"{name} = {_value(value)}{note}"
    yield from (
        "",
        "# Another program is not judged. Its kernels have their shares of the launches in percent.",
        "[program]",
    )
    yield from (f"{key} = {_value(value)}" for key, value in _given(contract.program) if key != "kernels")
    yield from ("", "[program.kernels]")
    yield from (f"{_value(name)} = {pct}" for name, pct in contract.program.kernels.items())


def _given(table: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a structure that its file must have, or that say something."""
    for field in structs.fields(table):
        value = getattr(table, field.name)
        if field.required or value not in ("", (), None):
            yield field.name, value


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else str(value)


def read(path: Path) -> Contract:
    """Return the contract in a file. Raises ConfigError."""
    try:
        text = disk.read(path).decode()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not TOML, because it is not UTF-8 text.") from None
    return from_toml(text, str(path))


def from_toml(text: str, source: str) -> Contract:
    """Return the contract in the text of a file; `source` is what errors name. Raises ConfigError."""
    try:
        content = tomllib.loads(text.replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: is not valid TOML: {clean(str(error), 200)}.") from None
    version = content.get("version")
    if version != VERSION:
        raise ConfigError(
            f"{source}: is no contract of version {VERSION}; write it again with `overlapscope contract write`."
        )
    # Nearly all files have nothing to clean, and large ones many texts.
    if "\\" in text or not text.replace("\n", "").isprintable():
        content = _cleaned(content)
    try:
        contract = msgspec.convert(content, Contract)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {clean(str(error), 200)}.") from None
    # By default, they state nothing, so that the gate would be open.
    if missing := [key for key in ("ranks", "devices", "kernels") if key not in content.get("program", {})]:
        raise ConfigError(f"{source}: program has no {listed(missing)}; `overlapscope contract write` states all.")
    return contract


def _cleaned(value: Any) -> Any:
    """Return a value of TOML, with all texts in it cleaned."""
    if isinstance(value, dict):
        return {clean(key): _cleaned(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_cleaned(part) for part in value]
    return clean(value) if isinstance(value, str) else value
