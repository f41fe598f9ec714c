"""What `whatif` predicts for sets of changes, from a recording of the program as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from overlapscope.catalog.changes import CHANGES
from overlapscope.errors import OverlapscopeError
from overlapscope.trials.protocol import Setting
from overlapscope.trials.result import Predicted


def predictions(
    recording: Path, sets: Sequence[tuple[Setting, ...]], plain_step_ns: int
) -> Mapping[tuple[Setting, ...], Predicted]:
    """Of the sets for which something can be predicted, percent of the plain step, which takes so long.

    Raises OverlapscopeError where the recording cannot be read or has no GPU activity.
    """
    from overlapscope.inputs import read_trace
    from overlapscope.prediction import predict

    trace = read_trace(recording, cache=False)
    predicted = {}
    for settings in sets:
        asked = [name for setting in settings for name in CHANGES[setting.change].predicted_by]
        if any(not CHANGES[setting.change].predicted_by for setting in settings):
            continue
        result = predict(trace, asked, plain_step_ns=plain_step_ns).result
        if result.gain_ns is not None:
            value, low, high = (
                -100 * gain / result.baseline_step_ns
                for gain in (result.gain_ns.value, result.gain_ns.high, result.gain_ns.low)
            )
            predicted[settings] = Predicted(value=value, low=low, high=high)
    return predicted


def predicted_or_why(
    recording: Path, sets: Sequence[tuple[Setting, ...]], plain_step_ns: int
) -> tuple[Mapping[tuple[Setting, ...], Predicted], str]:
    """The same, and why there is none, in a sentence."""
    try:
        return predictions(recording, sets, plain_step_ns), ""
    except OverlapscopeError as error:
        return {}, f"Nothing is predicted: {error}"
