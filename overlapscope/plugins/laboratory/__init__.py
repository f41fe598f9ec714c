"""Laboratory: experiments that are measured, recorded, analyzed, and compared with published figures."""

from overlapscope.plugin import Command, Plugin, PluginPage

RESULTS = "results.json"
"""Name of files with results."""

PLUGIN = Plugin(
    name="laboratory",
    commands=(
        Command(
            "scenarios", "run experiments with known outcomes, and compare", f"{__name__}.command:ScenariosCommand"
        ),
    ),
    pages=(PluginPage("laboratory", "Laboratory", f"{__name__}.page", files=RESULTS, state=("experiment",)),),
    kinds={"laboratory": "a laboratory's results"},
)
