"""Small `trace_view.json` files of torch_npu's profiler, written by hand. Times are in microseconds."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

Event = dict[str, Any]

BASE_US = 1_736_408_883_000_000
PROGRAM = 3_096_504
MAIN, QUEUE = 11, 12
"""Threads of the program, and of torch_npu's queue of tasks."""
_LAYERS = {"CANN": 7, "Ascend Hardware": 13, "HCCL": 15, "Communication": 15, "Overlap Analysis": 23}


class TraceView:
    """The events of one rank, which grow by its methods."""

    def __init__(self, device: int = 0, communication: str = "HCCL") -> None:
        self.events: list[Event] = []
        self._device = device
        self._communication = communication
        self._groups: dict[str, int] = {}
        self._named("Python", MAIN, "Thread 11")
        for process in ("CANN", "Ascend Hardware", communication, "Overlap Analysis"):
            self._named(process, 0, "")

    def host(self, cat: str, name: str, start: float, dur: float, thread: int = MAIN, **args: Any) -> None:
        self._add("Python", thread, name, start, dur, args, cat=cat)

    def call(self, name: str, start: float, dur: float, connection: int, thread: int = QUEUE) -> None:
        self._add("CANN", thread, name, start, dur, {"connection_id": connection})

    def task(self, name: str, kind: str, start: float, dur: float, stream: int = 2, **args: Any) -> None:
        self._add("Ascend Hardware", stream, name, start, dur, {"Task Type": kind} | args)

    def kernel(self, start: float, dur: float, connection: int, stream: int = 2) -> None:
        """Add a kernel, and the call that launched it 5 us before."""
        self.call("Node@launch", start - 5, 3, connection)
        self.task("aclnnMm_MatMulV2", "AI_CORE", start, dur, stream, connection_id=connection)

    def collective(
        self,
        start: float,
        dur: float,
        connection: int,
        name: str = "hcom_allReduce__586_0_1",
        group: str = "0",
        **args: Any,
    ) -> None:
        """Add a collective on stream 4, its parts, and the call that launched it 5 us before."""
        self.call("Node@launch", start - 5, 3, connection)
        thread = self._groups.setdefault(group, 2 * len(self._groups))
        self._named(self._communication, thread, f"Group {group} Communication")
        self._named(self._communication, thread + 1, "Plane 0")
        self._add(self._communication, thread, name, start, dur, {"connection_id": connection, "model id": 7} | args)
        self._add(self._communication, thread + 1, "Memcpy", start, dur / 2, {"stream id": 4, "task type": "Memcpy"})
        self.task("SDMA", "SDMA", start, dur / 2, 4, connection_id=connection)
        self.task("Notify Wait", "Notify Wait", start + dur / 2, dur / 2, 4, connection_id=connection)

    def sums(self, name: str, start: float, dur: float) -> None:
        """Add a row that repeats time of other rows."""
        self._add("Overlap Analysis", 0, name, start, dur, {})

    def text(self) -> str:
        return json.dumps(self.events)

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text())
        return path

    def _named(self, process: str, thread: int, name: str) -> None:
        for what, named in (("process_name", process), ("thread_name", name)):
            event = {"ph": "M", "name": what, "pid": self._pid(process), "tid": thread, "args": {"name": named}}
            self.events.append(event)

    def _pid(self, process: str) -> int:
        return PROGRAM << 10 | _LAYERS[process] << 5 | self._device if process in _LAYERS else PROGRAM

    def _add(
        self, process: str, thread: int, name: str, start: float, dur: float, args: dict[str, Any], **more: Any
    ) -> None:
        event = {"ph": "X", "name": name, "pid": self._pid(process), "tid": thread, "args": args} | more
        self.events.append(event | {"ts": str(BASE_US + Decimal(str(start))), "dur": dur})
