"""Steps of a program without marks and optimizer: a fixed number of events of a source."""

from __future__ import annotations

from collections.abc import Callable

from overlapscope.plugins.trials.protocol import Steps
from overlapscope.recorder.automatic_steps import AutomaticSteps
from overlapscope.recorder.step_choice import SourceKind, StepSource
from overlapscope.recorder.step_sources import StepSources
from overlapscope.recorder.wrapping import Undo


def chosen(automatic: AutomaticSteps) -> Steps | None:
    """Return the steps that were chosen, as another run can find them; None if none were."""
    choice = automatic.choice
    if choice is None:
        return None
    name = choice.name if choice.source is None else choice.source.name
    return Steps(kind=choice.kind.name, name=name or "", each=choice.each, label=choice.label)


def watch(steps: Steps, stepped: Callable[[], None]) -> Undo:
    """Call `stepped` at the end of each step, counting from the program's first event, the same in every run."""
    seen = 0

    def happened(source: StepSource) -> None:
        nonlocal seen
        if source.name == steps.name or not steps.name:
            seen += 1
            if seen % steps.each == 0:
                stepped()

    sources = StepSources(happened)
    sources.start((SourceKind[steps.kind],))
    return sources.stop
