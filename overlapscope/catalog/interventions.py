"""Changes that `overlapscope whatif` can predict, in the order in which they are applied.

Later changes may build on earlier ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from overlapscope.trace.model import Framework


class InterventionWords(NamedTuple):
    """Words for an intervention."""

    id: str
    title: str
    """Phrase for its effect: `use pinned memory on the host`."""
    needs: str
    """Requirement on a recording for it to apply: `pageable copies`."""
    elsewhere: tuple[str, str] | None = None
    """Title and requirement for programs not written with PyTorch, if they differ."""
    argument: str | None = None
    """Placeholder of its argument in help: `CALL`."""
    argument_help: str = ""
    argument_required: bool = False
    arguments: tuple[str, ...] = ()
    """Possible arguments; empty if they depend on the recording."""

    def of(self, framework: Framework) -> tuple[str, str]:
        """Return title and requirement in words that fit the framework."""
        return (self.title, self.needs) if framework == "pytorch" or self.elsewhere is None else self.elsewhere

    @property
    def help(self) -> str:
        """Title, with an explanation of the argument."""
        return f"{self.title}: {self.argument_help}" if self.argument_help else self.title


WHOLE_STEP: Final = "step"
"""Argument of `graph` for everything that a step launches, the optimizer included."""

_ALL: Final = (
    InterventionWords(
        "faster-loader",
        "do not wait for the DataLoader",
        "time in a DataLoader's next",
        elsewhere=("do not wait for the input", "waits that are known to be for input"),
    ),
    InterventionWords(
        "pin",
        "use pinned memory on the host",
        "pageable copies or pin_memory() calls",
        ("use pinned memory on the host", "pageable copies or calls that pin memory"),
    ),
    InterventionWords(
        "non-blocking",
        "copy with non_blocking=True",
        "copies that block the host",
        elsewhere=("copy without blocking the host", "copies that block the host"),
    ),
    InterventionWords(
        "no-sync",
        "do not wait in a blocking call",
        "such blocking calls",
        argument="CALL",
        argument_help="CALL, or calls inside the op or range CALL",
        argument_required=True,
    ),
    InterventionWords(
        "no-gc", "do not pause for Python's garbage collector", "recorded pauses of Python's garbage collector"
    ),
    InterventionWords(
        "less-host",
        "leave out host work",
        "such work of the launching thread",
        argument="WORK",
        argument_help="python, cpu-ops, gil-wait...",
        argument_required=True,
        arguments=("python", "cpu-ops", "file-io", "gil-wait", "preempted", "cpu-throttled"),
    ),
    InterventionWords("batch-copies", "merge many small copies into one", "runs of small copies"),
    InterventionWords(
        "side-stream", "copy on CUDA streams of their own, one per direction", "copies on streams that also run kernels"
    ),
    InterventionWords(
        "two-way", "copy in both directions (H2D and D2H) at once", "streams with copies in both directions"
    ),
    InterventionWords("prefetch", "copy the input one step ahead", "steps that start with input copies"),
    InterventionWords(
        "fused", "update parameters with one launch", "optimizers that launch a kernel for each parameter and operation"
    ),
    InterventionWords(
        "graph",
        "launch kernels as a CUDA graph",
        "consecutive kernel launches",
        argument="RANGE",
        argument_help=f"of each range named RANGE, of each step as a whole ({WHOLE_STEP}), or of each step's model",
    ),
)

INTERVENTIONS: Final = {words.id: words for words in _ALL}
