"""Earlier ids of rules, which files, command lines and markers may still use."""

from __future__ import annotations

from typing import Final

_CURRENT: Final = {
    "allocator-stall": ("allocation",),
    "copy-on-compute-stream": ("same-stream",),
    "exposed-communication": ("exposed-comm",),
    "pageable-copy": ("pageable-memory",),
    "launch-bound": ("dispatch", "python"),
    "host-compute": ("python", "cpu-ops", "gc-pause", "gil-wait", "file-io", "preempted", "cpu-throttled"),
}
"""Current ids of each renamed or divided rule, by its earlier id; the nearest comes first."""


def current_rule(name: str) -> str:
    """Return the current id of a rule, the nearest if it was divided; any other name is returned unchanged."""
    return current_rules(name)[0]


def current_rules(name: str) -> tuple[str, ...]:
    """Return the current ids that together have what a rule had; any other name is returned unchanged."""
    return _CURRENT.get(name, (name,))


def ids_of(rule: str) -> tuple[str, ...]:
    """Return the id of a rule, followed by its earlier ids."""
    return (rule, *(earlier for earlier, current in _CURRENT.items() if rule in current))
