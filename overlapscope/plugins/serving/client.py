"""Recordings of inference servers by their endpoints /start_profile and /stop_profile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from overlapscope.base import clock
from overlapscope.base.words import clean
from overlapscope.errors import RecordingFailed, UsageError

_ENDINGS: Final = (".json", ".json.gz")
_STARTS_S: Final = 60.0
"""Maximum time for a server to start its profiler."""
_STOPS_S: Final = 900.0
"""Maximum time to stop it, since servers answer when the ranks have written their traces."""
_STILL_S: Final = 2.0
"""Time without a change after which the traces are complete."""
_POLLED_S: Final = 0.2
_SHOWN: Final = 200

_NO_PROFILER: Final = (
    "It has no profiler: start vLLM with `--profiler-config.profiler torch --profiler-config.torch_profiler_dir DIR`, "
    "or in older versions with VLLM_TORCH_PROFILER_DIR=DIR. SGLang needs no option, and neither do new versions of "
    "TensorRT-LLM. Others have no such endpoint."
)


def record_server(
    url: str,
    traces: Path,
    seconds: float,
    *,
    stacks: bool = False,
    patience_s: float = 60.0,
    begun: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Have a server record itself.

    Args:
        url: Address of the server, with `http` or `https`.
        traces: Directory into which the server writes its traces, as this machine sees it.
        seconds: Time to record.
        stacks: Whether to ask for Python stacks; otherwise the server decides.
        patience_s: Maximum time to wait for traces after the server has answered.
        begun: Called when the server records.

    Returns:
        The new traces, sorted: one for each rank.

    Raises:
        UsageError: The address or the directory is wrong.
        RecordingFailed: The server refuses or doesn't answer, or no trace comes.
    """
    from urllib.parse import urlsplit

    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise UsageError(f"{clean(url, _SHOWN)} is no address of a server; it looks like http://localhost:8000.")
    if not traces.is_dir():
        raise UsageError(f"{traces} is no directory; name the one into which the server writes its traces.")
    before = _traces_in(traces)
    # vLLM takes no body: its directory and stacks are options of its start.
    options = {"output_dir": str(traces.absolute()), **({"with_stack": True} if stacks else {})}
    _post(url, "start_profile", _STARTS_S, options)
    try:
        begun()
        time.sleep(seconds)
    finally:
        _post(url, "stop_profile", _STOPS_S, {})
    return _written(url, traces, before, patience_s)


def _post(url: str, endpoint: str, patience_s: float, content: dict[str, object]) -> None:
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    address = f"{url.rstrip('/')}/{endpoint}"
    headers = {"Content-Type": "application/json"}
    request = Request(address, data=json.dumps(content).encode(), headers=headers, method="POST")
    try:
        with urlopen(request, timeout=patience_s):
            return
    except HTTPError as error:
        message = clean(error.read(_SHOWN * 4).decode(errors="replace"), _SHOWN)
        why = _NO_PROFILER if error.code == 404 else f"The server said: {message}" if message else ""
        raise RecordingFailed(f"{address} answered with {error.code} ({error.reason}). {why}".strip()) from error
    except TimeoutError as error:
        raise RecordingFailed(f"{address} did not answer within {patience_s:g} s.") from error
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise RecordingFailed(f"{address} cannot be reached: {clean(str(reason), _SHOWN)}.") from error


def _traces_in(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return sizes and times of the traces of a directory, and of those in its own directories."""
    found = {}
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if path.name.endswith(_ENDINGS) and path.is_file():
            there = path.stat()
            found[path] = there.st_size, there.st_mtime_ns
    return found


def _written(url: str, folder: Path, before: dict[Path, tuple[int, int]], patience_s: float) -> list[Path]:
    """Return the traces that are new or have changed, once none changes any more."""
    until_ns = clock.now_ns() + round(patience_s * clock.NS_PER_S)
    new: dict[Path, tuple[int, int]] = {}
    still_since_ns = clock.now_ns()
    while not new or clock.now_ns() < still_since_ns + round(_STILL_S * clock.NS_PER_S):
        found = {path: state for path, state in _traces_in(folder).items() if before.get(path) != state}
        if found != new:
            new, still_since_ns = found, clock.now_ns()
        if not new and clock.now_ns() > until_ns:
            raise RecordingFailed(
                f"{clean(url, _SHOWN)} has recorded, but no trace has come into {folder} within {patience_s:g} s. The "
                "server writes into another directory, such as that of `--profiler-config.torch_profiler_dir`, or on "
                "another machine: copy its traces from there, and `overlapscope analyze` them."
            )
        time.sleep(_POLLED_S)
    return sorted(new)
