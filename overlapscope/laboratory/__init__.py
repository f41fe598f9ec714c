"""Laboratory: experiments that are measured, recorded, analyzed, and compared with published figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlapscope.laboratory.experiment import Experiment

__all__ = ["main"]


def main(experiment: Experiment) -> None:
    """Run the experiment of a scenario file that is run as a script, and exit.

    This does the same as `overlapscope scenarios run FILE`, with the script's arguments.

    Raises:
        RuntimeError: The script is not a file.
    """
    import runpy
    import sys

    # The experiment is named by its file, because the process that runs the variants reads that again.
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        raise RuntimeError(f"{experiment.name} is in no file; `main` is for scripts.")
    sys.argv[1:1] = ["scenarios", "run", file]
    runpy.run_module("overlapscope", run_name="__main__", alter_sys=True)
