"""Recordings and sockets of a watched program, where another user puts things."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from overlapscope.plugins.watch import continuous, protocol
from tests.process.test_two_users import ALICE, PLANTS, as_user, mallory, shared

__all__ = ["shared"]


def test_recordings_are_not_kept_in_a_folder_of_another_user(shared: Path) -> None:
    mallory(lambda: PLANTS["a folder"](shared / "watched", Path.cwd()), shared)

    def begin() -> int:
        try:
            continuous.begin_recording(continuous.directory_of(shared, "j"))
        except PermissionError:
            return 3
        return 0

    assert as_user(ALICE, begin, output=shared.parent / "said" / "watch") == 3
    assert list((shared / "watched").iterdir()) == []


@pytest.mark.parametrize("plant", ["a link to a folder", "a folder", "a file", "a link to nothing"])
def test_a_socket_is_neither_made_nor_asked_where_another_user_has_put_something(
    plant: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, place = Path.cwd(), shared / f"overlapscope-{ALICE}"
    monkeypatch.setattr(protocol, "candidates", lambda: [place])

    def prepare() -> None:
        PLANTS[plant](place, home)
        if plant == "a folder":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(place / f"{os.getpid()}.sock"))

    mallory(prepare, shared)

    def make() -> int:
        with suppress(OSError):
            protocol.make_directory()
            return 4
        return 5 if list(protocol.sockets()) else 3

    assert as_user(ALICE, make, output=shared.parent / "said" / "make") == 3
    assert {path.name for path in home.iterdir()} == {"good.json.gz", "precious"}
