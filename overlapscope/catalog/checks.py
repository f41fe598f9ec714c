"""Trust checks that a trace must pass before its numbers are believed (`docs/how-it-works/trust.md`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct

from overlapscope.base.words import read_texts


class TrustCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """Texts of a trust check, from `checks.toml`."""

    meaning: str = ""
    """Condition for a warning or failure, as a single sentence."""
    affects: str = ""
    """Doubtful results if it warns or fails."""
    remedy: str = ""
    """Remedy, to get a trace that passes."""
    comparable: str = "All figures; keep the warning in mind."
    """Figures that can still be compared with another recording if it warns or fails."""
    grave: str = ""
    """Sentence for a trace that this check alone makes worthless; empty if other checks may matter as much."""


@cache
def trust_checks() -> Mapping[str, TrustCheck]:
    """Return the checks by id, in the order in which they are made."""
    return read_texts(Path(__file__).with_name("checks.toml"), dict[str, TrustCheck])


def check_by_id(id: str) -> TrustCheck:
    """Return the texts of a check; empty ones for an unknown check in a report of another version."""
    return trust_checks().get(id) or TrustCheck()
