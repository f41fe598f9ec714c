"""Structures of the JSON report with the measures of a device's time, made from their catalogue.

Type checkers read their fields in `measured.pyi`, which `docs/generate.py` writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import Meta, defstruct
from msgspec.structs import asdict

from overlapscope.base.words import capital
from overlapscope.catalog.buckets import bucket_of
from overlapscope.catalog.measures import Group, of_group

_TYPES: Final[Mapping[str, Any]] = {"ns": int, "pct": float | None}


def _structure(name: str, group: Group, doc: str, **more: Any) -> type:
    fields = [
        (measure.id, Annotated[_TYPES[measure.unit], Meta(description=f"{capital(measure.meaning)}.")])
        for measure in of_group(group)
    ]
    namespace = {"__doc__": doc} | more
    return defstruct(name, fields, frozen=True, kw_only=True, module=__name__, namespace=namespace)


def _by_json_name(buckets: Any) -> dict[str, int]:
    """Return each bucket's length by its name in JSON (`exposed copy`), in order."""
    return {bucket_of(field).json_name: ns for field, ns in asdict(buckets).items()}


Buckets = _structure(
    "Buckets", "buckets", "Partition of a window, whose parts add up to it exactly.", named=_by_json_name
)
Engines = _structure("Engines", "engines", "Working times of the engines, which may run side by side.")
Overlap = _structure("Overlap", "overlap", "Amount of work that ran side by side.")

STRUCTURES: Final[Mapping[Group, Any]] = {"buckets": Buckets, "engines": Engines, "overlap": Overlap}
"""Structures by object of the report."""


def figures_of(ns: Mapping[str, int], *, shares_of: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return the fields `buckets`, `engines` and `overlap` of a window, or of several, from its lengths by name.

    Percentages are of other lengths if these are rounded.
    """
    of = {"ns": ns, "pct": ns if shares_of is None else shares_of}
    return {
        group: structure(**{measure.id: measure.of(of[measure.unit]) for measure in of_group(group)})
        for group, structure in STRUCTURES.items()
    }
