"""Recordings of all ranks of a job on this host, which begin with the same step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Final

import msgspec

from overlapscope.base.words import listed
from overlapscope.errors import UsageError
from overlapscope.recorder.destination import Rank
from overlapscope.watching.ask import Asking, lives, statuses
from overlapscope.watching.protocol import Outcome, Request, Status

_AHEAD_S: Final = 0.5
"""In which the ranks hear of it."""
_LEAST_AHEAD: Final = 5
_ATTEMPTS: Final = 6
"""Each looks twice as far ahead as the one before."""
_UNTIL_BEGUN_S: Final = 60.0
_UNTIL_WITHDRAWN_S: Final = 0.3
_NS_PER_S: Final = 1e9


def ranks_of(status: Status) -> list[Status]:
    """All processes on this host that are of its job, itself among them."""
    if status.job is None:
        return [status]
    return [one for one in statuses() if one.job == status.job]


def record(found: Sequence[Status], request: Request, begun: Callable[[Status, int], object]) -> list[Outcome]:
    """Of each, in order. `begun(status, step)` is called when one begins.

    Of several processes all begin with the same step, as far as they count alike; where one has come too far while the
    others are asked, all are asked again. Raises UsageError where a process has gone.
    """
    if len(found) == 1 or request.seconds is not None:
        return _ask(found, request, begun)
    for attempt in range(_ATTEMPTS):
        answering = {one.pid: one for one in statuses()}
        # One that is busy may not answer in time, and lives.
        latest = [answering.get(one.pid, one) for one in found if one.pid in answering or lives(one.pid)]
        if len(latest) < len(found):
            gone = sorted({status.pid for status in found} - {one.pid for one in latest})
            raise UsageError(f"{'process' if len(gone) == 1 else 'processes'} {listed(gone)} ended or cannot be asked.")
        ahead = _ahead(latest) * 2**attempt
        at_step = max(one.steps for one in latest) + ahead
        slowest_ns = max((one.plain_step_ns or 0 for one in latest), default=0)
        wait_s = _UNTIL_BEGUN_S + 2 * ahead * slowest_ns / _NS_PER_S
        outcomes = _ask(found, msgspec.structs.replace(request, at_step=at_step), begun, wait_s)
        if not any(one.too_late or one.busy for one in outcomes):
            break
        # Until those that were withdrawn know it.
        time.sleep(_UNTIL_WITHDRAWN_S)
    return outcomes


def _place(status: Status) -> Rank | None:
    return None if status.rank is None or status.world_size is None else Rank(status.rank, status.world_size)


def _ahead(found: Sequence[Status]) -> int:
    """Steps that a job makes while its ranks hear of a request."""
    fastest_ns = min((one.plain_step_ns for one in found if one.plain_step_ns), default=None)
    return _LEAST_AHEAD + (0 if fastest_ns is None else round(_AHEAD_S * _NS_PER_S / fastest_ns))


def _ask(
    found: Sequence[Status],
    request: Request,
    begun: Callable[[Status, int], object],
    wait_s: float = _UNTIL_BEGUN_S,
) -> list[Outcome]:
    # Whoever interrupts this closes the sockets first, for which the threads wait.
    with ThreadPoolExecutor(len(found)) as pool, ExitStack() as asked:
        asking = [asked.enter_context(Asking(one.pid, request, _place(one))) for one in found]

        def wait(number: int) -> Outcome:
            outcome = asking[number].outcome(partial(begun, found[number]), until_begun_s=wait_s)
            if outcome.too_late:
                # The others need not go on.
                for other in asking:
                    other.close()
            return outcome

        return list(pool.map(wait, range(len(found))))
