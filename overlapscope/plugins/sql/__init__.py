"""SQL over traces and analysis results, by DuckDB: a command, a function in Python, and tools for assistants."""

from overlapscope.plugin import Command, Extra, Plugin

PLUGIN = Plugin(
    name="sql",
    extra=Extra(("duckdb", "pyarrow"), "overlapscope query and overlapscope.sql"),
    commands=(
        Command(
            "query",
            "query traces and analysis results with SQL",
            f"{__name__}.command:QueryCommand",
            group="Look at a recording",
            reads=True,
        ),
    ),
    kinds={"query": "the answer to a query"},
    schemas={"query": f"{__name__}.formats:Result"},
    tools=f"{__name__}.tools:tools",
    skill=f"{__name__}.tables:skill",
    api={"sql": f"{__name__}.engine:sql"},
)
