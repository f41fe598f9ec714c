"""The program while nothing is recorded: what a step takes then, beside the recording."""

from __future__ import annotations

from overlapscope.analysis.results import Device, Plain
from overlapscope.base.words import Unit, unit_for

_HOW = {"measured": "timed around the recording", "told": "as given", "estimated": "estimated from the recording"}

_HARDLY = 0.02


def sentence(device: Device) -> str:
    """What a plain step takes, how that is known, and what the figures are of; empty where nothing is known."""
    plain = device.plain
    if plain is None:
        return ""
    of = unit(plain)
    recorded = f"{of.text(plain.recorded_step_ns)} in the recording"
    if plain.origin == "estimated":
        if plain.step_ns >= (1 - _HARDLY) * plain.recorded_step_ns:
            return f"By estimate, a step takes as long while nothing is recorded: {_interval(plain, of)} ({recorded})."
        return (
            f"Recording slows the host. While nothing is recorded, a step takes {_interval(plain, of)} by estimate "
            f"({recorded}). Verdict and findings are of the recording: time plain steps with `overlapscope run`, or "
            "pass the length as --plain-step."
        )
    between = "" if plain.low_ns == plain.high_ns else f", {_interval(plain, of)}"
    how = f"{_HOW[plain.origin]}{between}"
    said = f"A step takes {of.text(plain.step_ns)} while nothing is recorded ({how}), {recorded}."
    if plain.program is None:
        return f"{said} The recording cannot be replayed, so verdict and findings are of the recording."
    return f"{said} Verdict, findings and savings are of the plain program."


def unit(plain: Plain) -> Unit:
    """The unit in which the longer of the two steps reads well."""
    return unit_for(max(plain.high_ns, plain.recorded_step_ns))


def _interval(plain: Plain, of: Unit) -> str:
    return f"{of.number(plain.low_ns)} to {of.text(plain.high_ns)}"
