"""Buckets: the parts of a device's window. Each instant is in exactly one of them."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from overlapscope.catalog.causes import Subject


class Bucket(Struct, frozen=True):
    """A bucket, with its texts and colors."""

    id: str
    """Name in the palette, such as `exposed-copy`."""
    meaning: str
    """When an instant is in the bucket."""
    colors: tuple[str, str]
    """Colors `#rrggbb` for light and dark pages."""
    causes: Subject | None = None
    """Kind of causes that explain its time."""
    words: str = ""
    """Name for readers if it is not that of the id."""

    @property
    def field(self) -> str:
        """Field of the JSON report, such as `exposed_copy_ns`."""
        return f"{self.id.replace('-', '_')}_ns"

    @property
    def json_name(self) -> str:
        """Name in JSON, such as `exposed copy`."""
        return self.id.replace("-", " ")

    @property
    def name(self) -> str:
        """Name for readers, such as `exposed copy`."""
        return self.words or self.json_name


BUCKETS: Final = {
    bucket.name: bucket
    for bucket in (
        Bucket("compute", "kernels ran", ("#009e73", "#1fb58a")),
        Bucket(
            "exposed-comm",
            "communication ran and no other kernel beside it",
            ("#6d2a6b", "#c078b4"),
            causes="exposed-comm",
        ),
        Bucket(
            "exposed-copy",
            "a copy ran and no kernel beside it",
            ("#d15600", "#e2571a"),
            causes="exposed-copy",
        ),
        Bucket(
            "exposed-other",
            "only memory work in or between GPUs ran",
            ("#464600", "#d9d02c"),
            causes="exposed-other",
            words="memset/D2D/P2P",
        ),
        Bucket("idle", "nothing ran", ("#8c8ca0", "#5a7882"), causes="idle"),
        Bucket(
            "missing-ops",
            "the host waited for GPU ops that were not recorded",
            ("#506e6e", "#dcdcd2"),
        ),
        Bucket(
            "unrecorded",
            "a plain step is longer than the recorded one",
            ("#50463c", "#786e5a"),
        ),
    )
}
"""Buckets by name, in display order. The last two are part of the JSON report's `idle_ns`."""
_BY_NAME: Final = {name: bucket for bucket in BUCKETS.values() for name in (bucket.id, bucket.field, bucket.json_name)}


def figure_name(name: str) -> str:
    """Return the words for a figure by its name in JSON, which is a bucket's or that of something else."""
    bucket = _BY_NAME.get(name)
    return name if bucket is None else bucket.name


def bucket_of(name: str) -> Bucket:
    """Return the bucket of an id (`exposed-copy`), a field (`exposed_copy_ns`) or a name in JSON (`exposed copy`)."""
    return _BY_NAME[name]
