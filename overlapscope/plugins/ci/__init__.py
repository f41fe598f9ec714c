"""Continuous integration: the commit that lost overlap.

`bisect_command` is the command line, `worktree` what git does, `program` a run of the program, `bisect` the search,
`judge` decides, and `document` shows the result.
"""

from overlapscope.plugin import Command, Plugin

PLUGIN = Plugin(
    name="ci",
    commands=(
        Command(
            "bisect",
            "find the commit, or the stored trace, that lost overlap",
            f"{__name__}.bisect_command:BisectCommand",
            group="Keep it fixed",
        ),
    ),
)
