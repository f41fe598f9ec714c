"""A session: a run of the profiler from start to stop, with marks of steps and facts for its trace."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from overlapscope.base import clock
from overlapscope.base.marks import METADATA, STEP
from overlapscope.errors import RecordingFailed
from overlapscope.recorder import all_threads, devices
from overlapscope.recorder.cupti import detached, record_bookkeeping
from overlapscope.recorder.main_thread import threads_without_signals, undisturbed
from overlapscope.recorder.memory_guard import MemoryGuard
from overlapscope.recorder.options import Options, StepWindow
from overlapscope.recorder.trace_file import Metadata, origin, thread_names
from overlapscope.recorder.wrapping import around, is_a_handlers, with_variable

if TYPE_CHECKING:
    from overlapscope.trace.model import TimedSteps


_LOG_LEVEL, _ERRORS_ONLY = "KINETO_LOG_LEVEL", "6"
_GRAPHS = "TORCHINDUCTOR_CUDAGRAPHS"
"""With this variable the compiler uses CUDA graphs, which the profiler has to know before CUDA 12.6."""
_OWN_MARKS = "overlapscope::"

Role: TypeAlias = Literal["rehearsal", "recording", "unmarked"]
"""The program's first steps, the steps of the schedule, or a part of a program without steps."""


class Session:
    """A run of the profiler from construction to `stop`, with its marks of steps: a rehearsal or a recording.

    It must be stopped on the thread that started it, unless it records all threads.
    """

    metadata: Metadata
    """Valid after `stop`."""
    no_steps: list[str]
    """Names of annotations that aren't steps: it stopped before their end, or moved to another thread."""

    def __init__(
        self,
        window: StepWindow,
        options: Options,
        *,
        on_too_much: Callable[[], None],
        wanted: bool = True,
        role: Role = "recording",
    ) -> None:
        """Start the profiler, for a window of steps. `MemoryGuard` calls `on_too_much`. Raises RecordingFailed."""
        self.window, self.role = window, role
        self.wanted = wanted
        """True to keep it."""
        self.judged_ns: list[int] = []
        """Lengths of its judged steps by the host's clock, in nanoseconds."""
        self._has_gpu_times: bool | None = None
        self._stopped = False
        self.notes: list[str] = []
        self._options = options
        # A profiler of all threads records no memory (pytorch issue 192290, torch 2.13).
        self.all_threads = all_threads.is_supported() and all_threads.left_ops_are_over() and not options.memory
        """True if the ops of all threads are recorded, and any thread may stop it."""
        self._origin = origin()
        self._profiler: Any = None
        """None once the events are released."""
        try:
            self._start()
            self._guard = MemoryGuard(options.max_size_bytes, on_too_much, stacks=options.stacks)
        except BaseException as error:
            self._undo_start()
            if not isinstance(error, Exception) or is_a_handlers(error):
                raise
            raise RecordingFailed(f"torch.profiler failed to start: {_first_line(error)}") from error
        self._begun_ns = clock.now_ns()
        """Time at which the present step began, in nanoseconds of `base.clock`."""
        self._annotation: Any = None
        """Open `record_function` of the present step."""
        self.no_steps = []
        self._left: list[Any] = []
        """Annotations of threads that it has moved away from. They stay open in the trace."""

    def _start(self) -> None:
        """Start the profiler.

        GPUs are recorded even if they are not in use yet. The set of visible GPUs cannot change afterwards.
        """
        import torch
        from torch._C._profiler import _ExperimentalConfig  # the only way to ask for sync events
        from torch.profiler.profiler import _KinetoProfile  # documented, and exported by `torch.profiler`

        from overlapscope.recorder.marks import EventNotes, gc_marks

        undisturbed()
        options = self._options
        config: dict[str, Any] = {"profile_all_threads": True} if self.all_threads else {}
        self._profiler = profiler = _KinetoProfile(
            activities=devices.activities(cuda=torch.cuda.is_available()),
            with_stack=options.stacks,
            record_shapes=options.shapes,
            profile_memory=options.memory,
            experimental_config=_ExperimentalConfig(
                enable_cuda_sync_events=True, disable_external_correlation=True, **config
            ),
        )
        self._event_notes = EventNotes(as_annotations=options.light)
        self._gc_marks = gc_marks()
        # Kineto of torch 2.13 prints every start and stop. It reads its log level once, at its first start.
        with warnings.catch_warnings(), with_variable(_LOG_LEVEL, os.environ.get(_LOG_LEVEL, _ERRORS_ONLY)):
            # torch 2.11 gives this warning for every recording.
            warnings.filterwarnings("ignore", message=".*Profiler clears events")
            compiler = nullcontext() if options.stacks or _GRAPHS in os.environ else _without_compiler()
            with not_the_programs(), compiler, threads_without_signals():
                profiler.prepare_trace()
        # An op still under way now would be in the trace without its launch, as a lead-in.
        with suppress(RuntimeError):
            devices.synchronize()
        with _only_annotations() if options.light else nullcontext():
            profiler.start_trace()
        _running.add(self)
        record_bookkeeping(False)
        self._event_notes.start()

    def _undo_start(self) -> None:
        """Stop a profiler that runs although what belongs to it could not start, such as a thread."""
        if self not in _running:
            return
        _running.discard(self)
        self._unhook()
        if self.all_threads:
            all_threads.settle()
        with suppress(Exception), detached(), all_threads.quiet():
            self._profiler.stop_trace()

    @property
    def lasted_s(self) -> float:
        """Time since the present step began, in seconds."""
        return (clock.now_ns() - self._begun_ns) / clock.NS_PER_S

    def takes_too_much(self, finished: int) -> bool:
        """Return whether its events take too much memory, and add a note if they do."""
        exceeded_bytes = self._guard.exceeded_bytes
        if exceeded_bytes is None:
            return False
        where = f", in step {finished}" if finished else ""
        least = " With stacks, the limit is an eighth of that." if self._options.stacks else ""
        self.notes.append(
            f"Recording ended early{where}: its events took up to {exceeded_bytes / 1e9:.2f} GB of memory "
            f"(--max-size).{least}"
        )
        return True

    def allow(self, max_size_bytes: int) -> None:
        """Change the limit of memory for its events."""
        self._guard.allow(max_size_bytes)

    def keep(self, step: int, because: str) -> None:
        """Keep it for its last step, which alone is judged, and add the sentence `because` to its notes."""
        self.wanted = True
        self.window = StepWindow(self.window.first, step, step + 1)
        self.notes.append(because)
        del self.judged_ns[:-1]

    def begin_step(self, step: int) -> None:
        """Begin a step."""
        self._begun_ns = clock.now_ns()
        if self._annotation is None:
            from torch.profiler import record_function

            self._annotation = record_function(f"{STEP}{step}")
            self._annotation.__enter__()
        if not self._options.light:
            self._gc_marks.start()

    def move(self, step: int) -> None:
        """Continue on the calling thread after the step under way, and count neither it nor the steps before it.

        The session must record all threads. It isn't stopped and started again: ranges that are open now, such as that
        of an optimizer whose step ends, would be left under the next session (`OpenRanges`).
        """
        self.no_steps += [f"{STEP}{number}" for number in range(self.window.first, step + 1)]
        self._left += filter(None, [self._annotation])
        self._annotation = None
        self.judged_ns.clear()
        self.window = self.window.begun(step + 1)

    def end_step(self, finished: int) -> None:
        """End the present step, after which `finished` steps are finished."""
        self._close_annotation()
        if finished > self.window.judged:
            self.judged_ns.append(clock.now_ns() - self._begun_ns)

    def _close_annotation(self) -> None:
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)

    def abandon(self) -> None:
        """Take away all that surrounds the profiler, which continues: another one is about to replace it."""
        self._guard.stop()
        self._unhook()
        _running.discard(self)

    def stop(self, finished: int, before: TimedSteps, step_source: str | None) -> None:
        """Stop the profiler. The annotation of a step under way stays open in the trace.

        The metadata states the steps timed `before` it without the profiler, and what ended steps.

        Raises:
            RecordingFailed: The profiler does not stop, so there is nothing to write.
        """
        from overlapscope.trace.model import PlainSteps

        self._guard.stop()
        source = step_source if finished > self.window.first else None
        warm_up, plain = self.window.warm_up_steps(finished), PlainSteps(before=before)
        self.metadata = Metadata(warm_up, plain, self._origin, source, thread_names())
        if self._annotation is not None:
            self.no_steps.append(self._annotation.name)
        try:
            self._stop_profiler()
            self._stopped = True
            self.notes += filter(None, [self._note_on_other_threads()])
        except Exception as error:
            self.release()
            if is_a_handlers(error):
                raise
            raise RecordingFailed(
                f"the profiler cannot be stopped, so there is no trace: {_first_line(error)}"
            ) from error
        finally:
            self._close_annotation()
            # Those of other threads can be closed here once the profiler is off.
            while self._left:
                self._left.pop().__exit__(None, None, None)

    def _stop_profiler(self) -> None:
        undisturbed()
        self._unhook()
        # Kineto takes metadata only while it runs.
        self._profiler.add_metadata_json(METADATA, self.metadata.json())
        # The profiler would wait for the device. This initializes CUDA in a program that does not use it. After a
        # device-side assert it fails, and the trace of the ops before the assert would be lost.
        with suppress(RuntimeError):
            devices.synchronize()
        if self._profiler.profiler is not None:
            self._profiler.profiler.use_device = None
        if self.all_threads:
            all_threads.settle()
        stops_ns = time.time_ns()
        # torch warns about ranges that are still open, such as that of an optimizer's step.
        with detached(), all_threads.quiet():
            self._profiler.stop_trace()
        _running.discard(self)
        if self.all_threads:
            # torch has an op that is still under way end with the recording.
            all_threads.leave(
                {
                    event.device_resource_id()
                    for event in self._events()
                    # Frames of Python have no correlation. Open ranges are found by `OpenRanges`.
                    if event.end_ns() >= stops_ns and event.correlation_id() and not event.is_user_annotation()
                }
            )

    def _unhook(self) -> None:
        """Take away what surrounds the profiler, before it stops."""
        self._event_notes.stop()
        self._gc_marks.stop()
        record_bookkeeping(True)
        if self.all_threads:
            all_threads.switch_off()

    def _note_on_other_threads(self) -> str | None:
        """Return a sentence on other threads of the program whose ops are not recorded; None without such threads."""
        import torch

        others = any(not thread.daemon and thread is not threading.current_thread() for thread in threading.enumerate())
        if self.all_threads or self._options.light or not others:
            return None
        if all_threads.is_supported() and not self._options.memory:
            return f"The ops of other threads are not in the trace: {all_threads.WHY_NOT_AGAIN}."
        which = "with --memory" if all_threads.is_supported() else torch.__version__
        return (
            f"The ops of other threads are not in the trace: torch {which} records only one thread and those of "
            "autograd."
        )

    @property
    def in_memory(self) -> bool:
        """True if its events are in memory: until they are released, or the profiler fails to stop."""
        return self._profiler is not None

    @property
    def empty(self) -> bool:
        """True if no op was recorded. Valid after `stop`; takes a microsecond per event."""
        names = (event.name() for event in self._events())
        return not any("::" in name and not name.startswith(_OWN_MARKS) for name in names)

    @property
    def has_gpu_times(self) -> bool | None:
        """True if it has a GPU op with a time; None while it runs, and if this was not asked before it was released."""
        if self._has_gpu_times is None and self._stopped and self.in_memory:
            self._has_gpu_times = self.timed_on_gpu()
        return self._has_gpu_times

    def timed_on_gpu(self) -> bool:
        """Return whether a GPU op with a time was recorded. Takes a microsecond per event."""
        if not devices.cuda_is_up():
            return False
        from torch._C._autograd import DeviceType  # `torch.autograd` has it, but does not export it.

        return any(event.device_type() != DeviceType.CPU and event.duration_ns() > 0 for event in self._events())

    def _events(self) -> Sequence[Any]:
        results = getattr(getattr(self._profiler, "profiler", None), "kineto_results", None)
        return () if results is None else results.events()

    def export(self, name: str) -> None:
        """Write the recording to a .json file, after `stop`."""
        self._profiler.export_chrome_trace(name)

    def release(self) -> None:
        """Free the memory of its events."""
        self._profiler = None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


_running: set[Session] = set()


def _in_forked_child() -> None:
    """Switch off the inherited profiler in a forked child, where it would keep every op in memory until the end."""
    if _running:
        import torch

        autograd: Any = torch.autograd
        autograd._enable_record_function(False)
        for session in _running:
            session._gc_marks.stop()
        if any(session._options.stacks for session in _running):
            sys.setprofile(None)


os.register_at_fork(after_in_child=_in_forked_child)


_starting: list[object] = []


@contextmanager
def not_the_programs() -> Iterator[None]:
    """Take no profiler that is prepared inside this block for one of the program."""
    mark = object()
    _starting.append(mark)
    try:
        yield
    finally:
        _starting.remove(mark)


def starting() -> bool:
    """Return whether a profiler of ours is starting."""
    return bool(_starting)


@contextmanager
def _only_annotations() -> Iterator[None]:
    """Have a profiler that starts inside record only `record_function`s and runtime calls of the host.

    The kinds of ops can be chosen only in the function that the profiler calls.
    """
    import torch.autograd.profiler
    from torch._C._profiler import RecordScope

    def enable(original: Callable[..., None], config: Any, activities: Any) -> None:
        original(config, activities, {RecordScope.USER_SCOPE})

    undo = around(torch.autograd.profiler, "_enable_profiler", enable)
    try:
        yield
    finally:
        undo()


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Keep a profiler that starts inside from importing torch's compiler to look whether it uses CUDA graphs.

    The import takes a second. The program makes it with its first optimizer or not at all. Garbage collections during
    the import also decide which of the program's objects are destroyed first at the end. With stacks, the program's
    own import would take minutes.
    """
    import torch

    thread = threading.get_ident()

    def get(original: Callable[[str], Any], name: str) -> Any:
        if name == "_inductor" and threading.get_ident() == thread:
            raise AttributeError(name)
        return original(name)

    show = around(torch, "__getattr__", get)
    try:
        yield
    finally:
        show()


def profiler_running() -> bool:
    """Return whether a torch profiler runs on any thread. At most one can run in a process."""
    import torch.autograd.profiler

    # `torch.autograd._profiler_enabled`, which is not public either, only covers this thread.
    return torch.autograd.profiler._is_profiler_enabled


# -- Open ranges -------------------------------------------------------------------------------------


class OpenRanges:
    """`record_function` ranges of the program that were open at the last `look` and still exist.

    If a range is entered under one session of the profiler and left under the next, torch writes to memory that it has
    freed, and the process may crash (torch 2.13).
    """

    def __init__(self) -> None:
        self._ranges: list[weakref.ref[Any]] = []

    def look(self) -> None:
        """Find every `record_function` that was entered and still exists, including some that were left already.

        torch keeps no list of them, and TorchScript does not allow wrapping its methods. Takes 50 ms for 300,000
        objects.
        """
        from torch.profiler import record_function

        self._ranges = [
            weakref.ref(range)
            for range in gc.get_objects()
            # The steps that a session has marked end with it.
            if issubclass(type(range), record_function)
            and getattr(range, "record", None) is not None
            and not range.name.startswith(STEP)
        ]

    @property
    def are_left(self) -> bool:
        """True if none of these ranges is open any more."""
        return all(range() is None for range in self._ranges)

    def look_whether_new(self) -> bool:
        """Call `look`, and return whether no range that is open now was open before."""
        before = {range() for range in self._ranges}
        self.look()
        return all(range() not in before for range in self._ranges)
