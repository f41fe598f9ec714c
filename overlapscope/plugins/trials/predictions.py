"""Predictions of `whatif` for sets of changes, from a recording of the unchanged program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from overlapscope.plugins.trials.changes import CHANGES
from overlapscope.plugins.trials.protocol import Setting
from overlapscope.plugins.trials.result import Predicted, Trial
from overlapscope.prediction.result import StoredPrediction

_Settings = tuple[Setting, ...]


def predict_sets(recording: Path, sets: Sequence[_Settings], plain_step_ns: int) -> Mapping[_Settings, Predicted]:
    """Predict sets of changes, in percent of the plain step of `plain_step_ns`.

    Returns:
        The prediction of each set that has one.

    Raises:
        OverlapscopeError: The recording can't be read or has no GPU activity.
    """
    from overlapscope.inputs import read_trace
    from overlapscope.prediction.predict import predict

    trace = read_trace(recording, cache=False)

    @cache
    def predicted(interventions: tuple[str, ...]) -> Predicted | None:
        result = predict(trace, interventions, plain_step_ns=plain_step_ns).result
        gain, step_ns = result.gain_ns, result.baseline_step_ns
        if gain is None:
            return None
        value, low, high = (-100 * saved / step_ns for saved in (gain.value, gain.high, gain.low))
        return Predicted(value=value, low=low, high=high)

    predictions = {}
    for settings in sets:
        parts = [_interventions(setting) for setting in settings]
        result = predicted(tuple(name for part in parts for name in part)) if all(parts) else None
        if result is not None:
            predictions[settings] = result
    return predictions


def _interventions(setting: Setting) -> tuple[str, ...]:
    change = CHANGES[setting.change]
    return () if setting.value in change.unpredicted else change.predicted_by


def kept(trial: Trial, at_ns: int) -> list[StoredPrediction]:
    """Return the rows for the history: each set of changes that was both predicted and measured."""
    return [
        StoredPrediction(
            at_ns=at_ns,
            program=trial.program,
            device=trial.device_name,
            change=", ".join((*tried.after, Setting(tried.change, tried.value).text)),
            predicted_pct=tried.predicted_pct.value,
            low_pct=tried.predicted_pct.low,
            high_pct=tried.predicted_pct.high,
            measured_pct=tried.measured_pct,
            measured_low_pct=tried.measured_low_pct,
            measured_high_pct=tried.measured_high_pct,
        )
        for tried in trial.changes
        if tried.predicted_pct is not None and tried.measured_pct is not None
    ]
