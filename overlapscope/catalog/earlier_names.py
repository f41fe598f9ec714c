"""Earlier ids of rules, which files, command lines and markers may still use."""

from __future__ import annotations

from typing import Final

_CURRENT: Final = {
    "allocator-stall": "allocation",
    "copy-on-compute-stream": "same-stream",
    "exposed-communication": "exposed-comm",
    "pageable-copy": "pageable-memory",
}
"""Current id of each renamed rule, by its earlier id."""


def current_rule(name: str) -> str:
    """Return the current id of a rule; any other name is returned unchanged."""
    return _CURRENT.get(name, name)


def ids_of(rule: str) -> tuple[str, ...]:
    """Return the id of a rule, followed by its earlier ids."""
    return (rule, *(earlier for earlier, current in _CURRENT.items() if current == rule))
