"""Continuous integration: the commit that lost overlap."""

from overlapscope.plugin import Command, Plugin

PLUGIN = Plugin(
    name="ci",
    commands=(
        Command(
            "bisect",
            "find the commit, or the stored trace, that lost overlap",
            f"{__name__}.bisect.command:BisectCommand",
            group="Keep it fixed",
        ),
    ),
    kinds={"bisect": "a result of `overlapscope bisect`"},
    schemas={"bisect": f"{__name__}.bisect.result:Bisection"},
)
