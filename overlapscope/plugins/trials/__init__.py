"""Trials of changes on a program, which runs unchanged and with each change while its steps are timed.

`inside` is the process of a run, `search` decides which runs to make, `conduct` makes them, `result` holds the
findings, and `edit` puts changes into the source. `in_code` does all of this with a function of the current process.
"""

from overlapscope.plugin import Command, Plugin

PLUGIN = Plugin(
    name="trials",
    commands=(
        Command(
            "try",
            "run a program with each change that may help: which pay?",
            f"{__name__}.command:TryCommand",
            group="Fix",
        ),
    ),
    kinds={"trial": "a result of `overlapscope try`"},
    skill=f"{__name__}.changes:skill",
    words=f"{__name__}.changes:words",
    schemas={"trial": f"{__name__}.result:Trial"},
    api={"try_changes": f"{__name__}.in_code:try_changes"},
)
