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
from overlapscope.watching.protocol import RecordingRequest, RequestOutcome, Status

_AHEAD_S: Final = 0.5
"""Time for the ranks to receive a request, in seconds."""
_LEAST_AHEAD: Final = 5
_ATTEMPTS: Final = 6
"""Maximum number of attempts, each of which begins twice as far ahead as the last."""
_UNTIL_BEGUN_S: Final = 60.0
_UNTIL_WITHDRAWN_S: Final = 0.3
_NS_PER_S: Final = 1e9


def ranks_of(status: Status) -> list[Status]:
    """Return all processes of its job on this host, including itself."""
    if status.job is None:
        return [status]
    return [other for other in statuses() if other.job == status.job]


def record(
    processes: Sequence[Status], request: RecordingRequest, begun: Callable[[Status, int], object]
) -> list[RequestOutcome]:
    """Record processes.

    All recordings begin with the same step, if the processes count alike. If a process passes that step too early, all
    are asked again.

    Args:
        processes: The processes to record.
        request: What to record of each.
        begun: Called with a process and its step when its recording begins.

    Returns:
        The outcome for each process, in the same order.

    Raises:
        UsageError: A process has ended.
    """
    if len(processes) == 1 or request.seconds is not None:
        return _ask(processes, request, begun)
    for attempt in range(_ATTEMPTS):
        answering = {status.pid: status for status in statuses()}
        # A busy process may not answer in time, but it exists.
        latest = [answering.get(old.pid, old) for old in processes if old.pid in answering or lives(old.pid)]
        if len(latest) < len(processes):
            gone = sorted({old.pid for old in processes} - {status.pid for status in latest})
            raise UsageError(f"{'process' if len(gone) == 1 else 'processes'} {listed(gone)} ended or cannot be asked.")
        ahead = _ahead(latest) * 2**attempt
        at_step = max(status.steps for status in latest) + ahead
        slowest_ns = max((status.plain_step_ns or 0 for status in latest), default=0)
        wait_s = _UNTIL_BEGUN_S + 2 * ahead * slowest_ns / _NS_PER_S
        outcomes = _ask(processes, msgspec.structs.replace(request, at_step=at_step), begun, wait_s)
        if not any(outcome.too_late or outcome.busy for outcome in outcomes):
            break
        # Until the processes know of the cancelled requests.
        time.sleep(_UNTIL_WITHDRAWN_S)
    return outcomes


def _place(status: Status) -> Rank | None:
    return None if status.rank is None or status.world_size is None else Rank(status.rank, status.world_size)


def _ahead(processes: Sequence[Status]) -> int:
    """Return the number of steps that a job makes while its ranks receive a request."""
    fastest_ns = min((status.plain_step_ns for status in processes if status.plain_step_ns), default=None)
    return _LEAST_AHEAD + (0 if fastest_ns is None else round(_AHEAD_S * _NS_PER_S / fastest_ns))


def _ask(
    processes: Sequence[Status],
    request: RecordingRequest,
    begun: Callable[[Status, int], object],
    wait_s: float = _UNTIL_BEGUN_S,
) -> list[RequestOutcome]:
    # An interruption closes the sockets first, since the threads wait for these.
    with ThreadPoolExecutor(len(processes)) as pool, ExitStack() as asked:
        asking = [asked.enter_context(Asking(status.pid, request, _place(status))) for status in processes]

        def wait(number: int) -> RequestOutcome:
            outcome = asking[number].outcome(partial(begun, processes[number]), until_begun_s=wait_s)
            if outcome.too_late:
                # Cancel the requests to the others.
                for other in asking:
                    other.close()
            return outcome

        return list(pool.map(wait, range(len(processes))))
