"""Structures of the JSON report with the measures of a device's time, made from their catalogue.

Type checkers read their fields in `measured.pyi`, which `docs/generate.py` writes.
"""

from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from overlapscope.catalog.measures import Group

class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    compute_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    exposed_other_ns: int
    idle_ns: int
    def named(self) -> dict[str, int]: ...

class Engines(msgspec.Struct, frozen=True, kw_only=True):
    compute_ns: int
    sm_ns: int
    h2d_ns: int
    d2h_ns: int
    comm_ns: int
    other_ns: int

class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    efficiency_pct: float | None
    hidden_copy_pct: float | None
    comm_compute_pct: float | None
    copy_ns: int
    hidden_copy_ns: int
    exposed_h2d_ns: int
    exposed_d2h_ns: int
    exposed_at_once_ns: int
    h2d_d2h_ns: int
    serial_ns: int
    busy_ns: int
    ideal_ns: int
    p2p_ns: int
    exposed_p2p_ns: int

class Measured(TypedDict):
    buckets: Buckets
    engines: Engines
    overlap: Overlap

STRUCTURES: Mapping[Group, type[Any]]

def figures_of(ns: Mapping[str, int], *, shares_of: Mapping[str, int] | None = None) -> Measured: ...
