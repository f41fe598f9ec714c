"""History: figures of many reports in a SQLite file, by job and commit, and changes of their levels."""

from overlapscope.plugin import Command, Extra, Plugin, PluginPage

PLUGIN = Plugin(
    name="history",
    extra=Extra(
        ("fsspec", "ruptures", "scipy"),
        "changes in level of overlapscope history, and histories at URLs",
    ),
    commands=(
        Command(
            "history",
            "keep reports over time, and show when a figure got worse",
            f"{__name__}.command:HistoryCommand",
            group="Keep it fixed",
            reads=True,
        ),
    ),
    pages=(
        PluginPage(
            "history",
            "History",
            f"{__name__}.page",
            option="history to show on the page History (default: that of overlapscope history, if there is one)",
            data=f"{__name__}.stored:find",
            state=("job", "metric", "by", "entry", "against"),
        ),
    ),
    signs={"history": rb"(?s)SQLite format 3\0.{52}OVLS"},
    tools=f"{__name__}.tools:tools",
    schemas={
        "history-entry": f"{__name__}.entry:Entry",
        "history-levels": f"{__name__}.course:JobCourse",
        "history-check": f"{__name__}.course:HistoryCheck",
    },
    baseline=f"{__name__}.baseline",
    keeper=f"{__name__}.drop",
)
