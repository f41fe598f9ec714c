"""Compiles `overlapscope/reading/scan.c` when the package is built or installed, to lie beside it.

The library has no interface of Python's, so one wheel serves all its versions. Without a C compiler (`CC`, by default
`cc`; none if that is empty), or where it fails, the package is built without, and reads the same more slowly.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
SOURCE = ROOT / "overlapscope" / "reading" / "scan.c"
LIBRARY = SOURCE.with_name("libscan.so")
# Without contraction, as numpy rounds after each operation.
FLAGS = ("-std=c11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-fPIC", "-shared")


class Build(BuildHookInterface[Any]):
    """Called by hatchling."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to a wheel, which is of this platform then."""
        if self.target_name == "wheel" and compiled():
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}
            build_data["artifacts"].append(str(LIBRARY.relative_to(ROOT)))


def compiled() -> bool:
    """Whether there is a library now that was made of this source."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        return False
    unfinished = LIBRARY.with_suffix(f".{os.getpid()}")
    command = [*compiler, *FLAGS, "-o", str(unfinished), str(SOURCE), "-lm"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        failed = f"overlapscope: {shlex.join(command)} failed, so traces are read more slowly:"
        print(failed, done.stderr, file=sys.stderr)
        unfinished.unlink(missing_ok=True)
        return False
    unfinished.replace(LIBRARY)
    return True
