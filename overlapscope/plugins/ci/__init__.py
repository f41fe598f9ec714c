"""Continuous integration: the check of every change and its comment, and the commit that lost overlap.

`command` is `overlapscope ci`. `repository` looks at the files of a repository, and `setup` derives limits from a
recording and fills in `templates`. `comment` writes the comment of a pull request with its picture, and
`forge` keeps it there. `bisect` finds the commit.
"""

from overlapscope.plugin import Command, Plugin

PLUGIN = Plugin(
    name="ci",
    commands=(
        Command(
            "ci",
            "set up the check in CI, and keep its comment on a pull request",
            f"{__name__}.command:CiCommand",
            group="Keep it fixed",
        ),
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
