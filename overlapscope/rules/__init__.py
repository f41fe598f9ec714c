"""Registry of the rules, which turn results into findings."""

from __future__ import annotations

from typing import Final

from overlapscope.base.registry import Registry
from overlapscope.plugin import plugins
from overlapscope.rules.rule import Rule

_OF_MODULE: Final = {
    "communication": ("exposed-comm",),
    "compute_streams": ("stream-without-work", "streams-without-overlap"),
    "copies": (
        "device-copy",
        "late-prefetch",
        "one-way-copies",
        "overlap-achieved",
        "page-migration",
        "pageable-memory",
        "peer-copy",
        "same-stream",
        "slow-link",
        "tiny-copies",
    ),
    "host_work": (
        "cpu-ops",
        "cpu-throttled",
        "data-loading",
        "dispatch",
        "file-io",
        "gc-pause",
        "gil-wait",
        "preempted",
        "python",
    ),
    "waits": ("allocation", "blocking-copy", "host-sync", "pin-in-loop"),
}
"""Rules of each module, each under its id as a private name."""
_OF_PLUGINS: Final = {id: place for plugin in plugins() for id, place in plugin.rules.items()}
_PLACES: Final = {
    id: f"{__name__}.{module}:_{id.replace('-', '_')}" for module, ids in _OF_MODULE.items() for id in ids
}
RULES: Registry[Rule] = Registry(dict(sorted(_PLACES.items())) | (_OF_PLUGINS | _PLACES))
"""All rules, those of plugins last."""
