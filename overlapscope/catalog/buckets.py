"""The buckets: the parts that a device's window falls into, so that each instant is in one of them."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from overlapscope.catalog.causes import Subject


class Bucket(Struct, frozen=True):
    """One bucket, with all that is said of it anywhere."""

    name: str
    """`exposed copy`: what people read. The JSON report's field is `exposed_copy_ns`."""
    meaning: str
    """When an instant is in it."""
    colors: tuple[str, str]
    """`#rrggbb` for light and for dark."""
    causes: Subject | None = None
    """What its time is explained by."""

    @property
    def id(self) -> str:
        """`exposed-copy`: the palette's name."""
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
"""By name, in the order in which they are shown. Missing ops are part of the JSON report's `idle_ns`."""
