"""Changes that `overlapscope whatif` can predict, in the order in which they are applied: later may build on earlier.

`interventions.toml` has their texts. `prediction.interventions` applies them to a graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from overlapscope.catalog.advice import InterventionTexts
    from overlapscope.trace.model import Framework


class Intervention(NamedTuple):
    """A change to a program."""

    id: str
    title: str
    """Phrase for its effect: `use pinned memory on the host`."""
    argument: str | None = None
    """Placeholder of its argument in help: `CALL`."""
    argument_help: str = ""
    argument_required: bool = False
    arguments: tuple[str, ...] = ()
    """Possible arguments; empty if they depend on the recording."""

    @property
    def texts(self) -> InterventionTexts:
        """The other texts, which help doesn't need."""
        from overlapscope.catalog.advice import intervention_texts

        return intervention_texts()[self.id]

    def words(self, framework: Framework) -> tuple[str, str]:
        """Return the title, and the requirement on a recording, in words that fit the framework."""
        texts = self.texts
        return (self.title, texts.needs) if framework == "pytorch" or texts.elsewhere is None else texts.elsewhere

    @property
    def help(self) -> str:
        """Title, with an explanation of the argument."""
        return f"{self.title}: {self.argument_help}" if self.argument_help else self.title

    @property
    def spelled(self) -> str:
        """Its option in help: `--graph [RANGE]`."""
        argument = self.argument if self.argument_required or self.argument is None else f"[{self.argument}]"
        return f"--{self.id} {argument}" if argument else f"--{self.id}"


WHOLE_STEP: Final = "step"
"""Argument of `graph` for everything that a step launches, the optimizer included."""

_HOST_WORK: Final = ("python", "cpu-ops", "file-io", "gil-wait", "preempted", "cpu-throttled")
_GRAPHED: Final = "of each range named RANGE, of each step as a whole (step), or of each step's model"
INTERVENTIONS: Final = {
    each.id: each
    for each in (
        Intervention("faster-loader", "do not wait for the DataLoader"),
        Intervention("pin", "use pinned memory on the host"),
        Intervention("non-blocking", "copy with non_blocking=True"),
        Intervention(
            "no-sync",
            "do not wait in a blocking call",
            argument="CALL",
            argument_help="CALL, or calls inside the op or range CALL",
            argument_required=True,
        ),
        Intervention("no-gc", "do not pause for Python's garbage collector"),
        Intervention(
            "less-host",
            "leave out host work",
            argument="WORK",
            argument_help="python, cpu-ops, gil-wait...",
            argument_required=True,
            arguments=_HOST_WORK,
        ),
        Intervention("batch-copies", "merge many small copies into one"),
        Intervention("side-stream", "copy on CUDA streams of their own, one per direction"),
        Intervention("two-way", "copy in both directions (H2D and D2H) at once"),
        Intervention("prefetch", "copy the input one step ahead"),
        Intervention("fused", "update parameters with one launch"),
        Intervention("graph", "launch kernels as a CUDA graph", argument="RANGE", argument_help=_GRAPHED),
    )
}
