"""Takes steps of a variant of a laboratory's experiment, as a script that `overlapscope run` records under torchrun.

torchrun --nproc-per-node 2 -m overlapscope run -m benchmarks.laboratory_steps ddp_training ddp
"""

from __future__ import annotations

import argparse

import overlapscope
from overlapscope.plugins.laboratory.catalog import load, shipped
from overlapscope.plugins.laboratory.experiment import Program


def main() -> None:
    """Take the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=shipped())
    parser.add_argument("variant")
    parser.add_argument("--scale", default="small")
    parser.add_argument("--steps", type=int, default=45)
    options = parser.parse_args()
    experiment = load(shipped()[options.experiment]).experiment
    variant = next(each for each in experiment.variants if each.name == options.variant)
    prepared = experiment.prepare(**experiment.sizes[options.scale], **variant.parameters)
    program = prepared if isinstance(prepared, Program) else Program(prepared)
    for _ in range(options.steps):
        program.step()
        overlapscope.step()
    if program.close is not None:
        program.close()


if __name__ == "__main__":
    main()
