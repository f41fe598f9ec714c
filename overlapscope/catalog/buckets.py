"""Buckets: the parts of a device's window. Each instant is in exactly one of them."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from overlapscope.catalog.causes import Subject


class Bucket(Struct, frozen=True):
    """A bucket, with all its words and colours."""

    name: str
    """Name for readers, such as `exposed copy`. The JSON report's field is `exposed_copy_ns`."""
    meaning: str
    """When an instant is in the bucket."""
    colors: tuple[str, str]
    """Colours `#rrggbb` for light and dark pages."""
    causes: Subject | None = None
    """Kind of causes that explain its time."""

    @property
    def id(self) -> str:
        """Name in the palette, such as `exposed-copy`."""
        return self.name.replace(" ", "-")


BUCKETS: Final = {
    bucket.name: bucket
    for bucket in (
        Bucket("compute", "kernels ran", ("#009e73", "#1fb58a")),
        Bucket(
            "exposed comm",
            "communication ran and no other kernel beside it",
            ("#6d2a6b", "#c078b4"),
        ),
        Bucket(
            "exposed copy",
            "a copy ran and no kernel beside it",
            ("#d15600", "#e2571a"),
            causes="exposed-copy",
        ),
        Bucket("exposed other", "only memsets and copies within the device ran", ("#8f861f", "#bdb23a")),
        Bucket("idle", "nothing ran", ("#a9afb9", "#7d8592"), causes="idle"),
        Bucket(
            "missing ops",
            "the host waited for GPU ops that were not recorded",
            ("#c9bfae", "#6b6355"),
        ),
    )
}
"""Buckets by name, in display order. Missing ops are part of the JSON report's `idle_ns`."""
