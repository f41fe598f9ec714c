"""Descriptors of ours leave the program's numbers alone, and are never mistaken for the program's."""

from __future__ import annotations

import os
from pathlib import Path

from overlapscope.base.output import Descriptor


def test_a_descriptor_frees_its_number_for_the_program(tmp_path: Path) -> None:
    number = os.open(tmp_path / "ours", os.O_CREAT | os.O_WRONLY)
    ours = Descriptor(number)
    moved = ours.number
    assert moved is not None and moved > number
    os.write(moved, b"text")
    ours.close()
    assert ours.number is None and (tmp_path / "ours").read_bytes() == b"text"


def test_a_number_that_the_program_uses_again_is_not_ours(tmp_path: Path) -> None:
    ours = Descriptor(os.open(tmp_path / "ours", os.O_CREAT | os.O_WRONLY))
    number = ours.number
    assert number is not None
    os.close(number)
    assert ours.number is None
    theirs = os.open(tmp_path / "theirs", os.O_CREAT | os.O_WRONLY)
    os.dup2(theirs, number)
    assert ours.number is None
    ours.close()
    os.write(number, b"still open")
    os.close(number)
    os.close(theirs)
