"""The laboratory's calibration of a GPU, as a file, and the one that is shipped."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Literal

import msgspec

from overlapscope.base import disk
from overlapscope.base.saved import decode
from overlapscope.errors import UsageError
from overlapscope.prediction.constants import Constants

_SHIPPED = Path(__file__).with_name("nvidia-h200.json")
_HOW = "`overlapscope scenarios calibrate` makes one on a GPU"


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `overlapscope scenarios calibrate` measured, and on what."""

    kind: Literal["calibration"] = "calibration"
    gpu: str
    """Product name, as traces state it."""
    date: str | None
    """Day of the measurement (UTC)."""
    torch: str | None
    cuda: str | None
    """The version PyTorch was built for."""
    driver: str | None
    constants: Constants


def read(path: str | os.PathLike[str]) -> Calibration:
    """The calibration in a file. Raises UsageError, with what to do, where there is none."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read as a calibration ({error.strerror or error}); {_HOW}.") from None
    try:
        return decode(data, Calibration)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: is no calibration of this version of overlapscope ({error}); {_HOW}.") from None


def write(calibration: Calibration, path: Path) -> None:
    """Write a calibration, in place of an earlier one; its directory is made.

    Raises UsageError where that cannot be done, or the file is something else, which is kept.
    """
    check_writable(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.write(path, [msgspec.json.format(msgspec.json.encode(calibration), indent=1) + b"\n"])
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error}); choose another file.") from None


def check_writable(path: Path) -> None:
    """Raises UsageError where a calibration would replace something else."""
    if path.is_dir():
        raise UsageError(f"{path}: is a directory; name a file in it.")
    if path.is_file():
        try:
            read(path)
        except UsageError:
            raise UsageError(f"{path}: exists and is no calibration; choose another file.") from None


@functools.cache
def shipped() -> Calibration:
    """The calibration of an NVIDIA H200 that comes with overlapscope."""
    return read(_SHIPPED)
