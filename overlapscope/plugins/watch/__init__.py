"""Watching: recordings of running programs, on request or at regular intervals, and of inference servers."""

from overlapscope.plugin import Command, Plugin, RunOption

PLUGIN = Plugin(
    name="watch",
    commands=(
        Command(
            "record",
            "record a running process, or list those that can be recorded",
            f"{__name__}.command:RecordCommand",
            group="Record",
        ),
    ),
    run=RunOption(
        "--on-demand",
        "record nothing until `overlapscope record PID` asks for it; all other recording options are ignored",
        f"{__name__}.api:watch_on_demand",
    ),
    after_torch={"OVERLAPSCOPE_WATCH": f"{__name__}.api:watch_by_variable"},
    api={"watch": f"{__name__}.api:watch"},
)
