"""Answers for assistants: a server over the Model Context Protocol (MCP), and a skill file."""

from overlapscope.plugin import Command, Extra, Plugin

PLUGIN = Plugin(
    name="assistant",
    extra=Extra(("mcp",), "overlapscope mcp"),
    commands=(
        Command(
            "mcp", "answer assistants that ask about traces, over MCP", f"{__name__}.command:McpCommand", group="More"
        ),
        Command(
            "skill", "print a skill file that teaches an assistant overlapscope", f"{__name__}.command:SkillCommand"
        ),
    ),
)
