"""Export of Nsight Systems' own reports, whose format only `nsys` reads."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

from overlapscope.base.words import clean
from overlapscope.errors import UnreadableTrace

SUFFIX: Final = ".nsys-rep"


def export(report: Path, target: Path) -> None:
    """Write the database of a report. `nsys` shows its progress where stderr is a terminal.

    Raises:
        UnreadableTrace: There is no `nsys`, or it fails.
    """
    import subprocess

    nsys = shutil.which("nsys")
    if nsys is None:
        raise UnreadableTrace(
            report,
            f"is a report of Nsight Systems, which only nsys can read, and nsys is not on the PATH; run "
            f"`nsys export --type sqlite {report.name}` where it is, and name the .sqlite file.",
        )
    shows = sys.stderr is not None and sys.stderr.isatty()
    command = [nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}", str(report.absolute())]
    done = subprocess.run(
        [*command[:-1], f"--quiet={'false' if shows else 'true'}", command[-1]],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if shows else subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode or not target.is_file():
        lines = (done.stdout or b"").decode("utf-8", "replace").split("\n")
        reason = next((clean(line.strip(), 200) for line in reversed(lines) if line.strip()), "without a message")
        reason = reason.rstrip(".")
        raise UnreadableTrace(report, f"`nsys export` failed ({reason}); check the report and nsys' version.")
