"""The file of a contract: TOML that people read and edit."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs

from overlapscope.base import disk
from overlapscope.base.words import clean, size
from overlapscope.contracts.model import VERSION, CallPlace, Contract
from overlapscope.errors import ConfigError

_STRING = r'"[^"\\\x00-\x1f\x7f]*"'
_ENTRY = re.compile(
    rf"(\w+|{_STRING}) = ({_STRING}|\d+(?:\.\d+)?|\[(?:[\d\[\], ]|{_STRING})*\])(?:  # [ -~]*)?", re.ASCII
)
_TABLE = re.compile(r"\[\[(\w+)\]\]|\[program(\.kernels)?\]", re.ASCII)

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
    for field in _fields(type(table)):
        value = getattr(table, field.name)
        if field.required or value not in ("", (), None):
            yield field.name, value


@cache
def _fields(table: type[msgspec.Struct]) -> tuple[structs.FieldInfo, ...]:
    return structs.fields(table)


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
        content = _plain(text) or tomllib.loads(text.replace("\r\n", "\n"))
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
    if "program" not in content:
        raise ConfigError(f"{source}: has no program; write it again with `overlapscope contract write`.")
    return contract


def _cleaned(value: Any) -> Any:
    """Return a value of TOML, with all texts in it cleaned."""
    if isinstance(value, dict):
        return {clean(key): _cleaned(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_cleaned(part) for part in value]
    return clean(value) if isinstance(value, str) else value


def _plain(text: str) -> dict[str, Any] | None:
    """Return what TOML of plain lines says, as `to_toml` writes it; None for any other, which `tomllib` reads.

    It takes a tenth of the time.
    """
    content: dict[str, Any] = {}
    tables: dict[str, list[dict[str, Any]]] = {}
    table = content
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        if match := _ENTRY.fullmatch(line):
            key, value = match[1].strip('"'), match[2]
            if key in table:
                return None
            try:
                table[key] = value[1:-1] if value[0] == '"' else msgspec.json.decode(value)
            except msgspec.DecodeError:
                return None
        elif match := _TABLE.fullmatch(line):
            table = {}
            if match[1]:
                tables.setdefault(match[1], []).append(table)
            elif match[2] and "kernels" not in content.get("program", {"kernels": ()}):
                content["program"]["kernels"] = table
            elif not match[2] and "program" not in content:
                content["program"] = table
            else:
                return None
        else:
            return None
    return None if content.keys() & tables.keys() else content | tables
