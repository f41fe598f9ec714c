"""Experiments with known outcomes."""

from overlapscope.plugin import Command, Plugin

PLUGIN = Plugin(
    name="laboratory",
    commands=(
        Command(
            "scenarios",
            "run experiments with known outcomes, and compare",
            "overlapscope.commands.scenarios:ScenariosCommand",
        ),
    ),
)
