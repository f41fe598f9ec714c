"""HolisticTraceAnalysis (HTA) on our loader: its analyses as a command, a page, and an object in Python."""

from overlapscope.plugin import Command, Extra, Plugin, PluginPage

PLUGIN = Plugin(
    name="hta",
    extra=Extra(
        ("hta",),
        "overlapscope hta (HolisticTraceAnalysis)",
        "This also installs JupyterLab: about 90 packages, 200 MB on disk.",
    ),
    check=f"{__name__}.build:require",
    commands=(
        Command("hta", "run an analysis of HolisticTraceAnalysis (HTA) on traces", f"{__name__}.command:HtaCommand"),
    ),
    pages=(PluginPage("hta", "HTA", f"{__name__}.page"),),
    kinds={"hta": "a result of HTA"},
    api={"hta": f"{__name__}.build"},
)
