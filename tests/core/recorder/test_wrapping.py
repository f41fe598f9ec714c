"""Telling exceptions of the program's signal handlers from ours."""

from __future__ import annotations

import functools
import signal

from overlapscope.recorder.wrapping import is_a_handlers


class _Limit:
    def too_late(self, *_: object) -> None:
        raise TimeoutError


def _raised(kind: type[Exception]) -> Exception:
    try:
        if kind is TimeoutError:
            signal.raise_signal(signal.SIGUSR1)
        raise kind
    except Exception as error:
        return error


def test_what_a_signal_handler_raises_is_the_programs() -> None:
    before = signal.signal(signal.SIGUSR1, _Limit().too_late)
    try:
        assert is_a_handlers(_raised(TimeoutError))
        assert not is_a_handlers(_raised(RuntimeError))
        signal.signal(signal.SIGUSR1, functools.partial(_Limit().too_late, 1))
        assert is_a_handlers(_raised(TimeoutError))
    finally:
        signal.signal(signal.SIGUSR1, before)
