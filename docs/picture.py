"""Draws `docs/images/analyze.svg`, the picture in the README, from a recording: `python docs/picture.py`."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
TRACE = "pipeline_1stream.json.gz"
WIDTH = 100
SHOWN = "Findings, costliest first"


def main() -> None:
    environment = os.environ | {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "overlapscope", "analyze", TRACE]
    done = subprocess.run(
        command, cwd=HERE.parent / "traces", env=environment, capture_output=True, check=True, text=True
    )
    output = done.stdout
    head, _, findings = output.partition(SHOWN)
    # The first two findings fit a picture.
    output = head + SHOWN + findings.partition(" 3. ")[0]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ overlapscope analyze " + TRACE, style="bold"))
    console.print(Text.from_ansi(output.rstrip()))
    console.save_svg(str(HERE / "images" / "analyze.svg"), title="overlapscope")


if __name__ == "__main__":
    main()
