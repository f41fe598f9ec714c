"""Baselines as JSON: sorted and line by line, so that a change can be reviewed; read back strictly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

import msgspec

from overlapscope.base.saved import MOST, decode, published
from overlapscope.base.words import clean
from overlapscope.budgets.baseline import (
    SCHEMA_VERSION,
    STEPS,
    Baseline,
    BaselineDevice,
    BaselineSeries,
    whole,
)
from overlapscope.budgets.metrics import METRICS
from overlapscope.errors import UnreadableTrace

_ANEW: Final = "write it anew with `overlapscope baseline write`"


class BaselineFile(Baseline, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A baseline as it is written."""

    digest: str
    """Of everything else in the file: 16 hexadecimal digits of its SHA-256."""


def to_json(baseline: Baseline) -> bytes:
    """What it is, then sorted keys; one line for each device, each series and each fact of the environment."""
    plain = msgspec.to_builtins(baseline)
    for line in plain["series"]:
        line["values"] = [value if value is None else whole(value) for value in line["values"]]
    plain["digest"] = _digest(plain)
    return ("\n".join(chain(["{"], _lines(plain), ["}"])) + "\n").encode()


def _digest(plain: Mapping[str, Any]) -> str:
    """Of the content however it is laid out, so that changed line ends or blanks change nothing."""
    content = {key: value for key, value in plain.items() if key != "digest"}
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]


def _lines(plain: dict[str, Any]) -> Iterator[str]:
    keys = ["kind", *sorted(plain.keys() - {"kind"})]
    for key in keys:
        value, comma = plain[key], "," if key != keys[-1] else ""
        if isinstance(value, list | tuple) and value:
            yield f'  "{key}": ['
            yield from (f"    {_compact(one)}{',' if one is not value[-1] else ''}" for one in value)
            yield f"  ]{comma}"
        elif isinstance(value, dict) and key == "environment":
            yield f'  "{key}": {{'
            names = sorted(value)
            yield from (f'    "{n}": {_compact(value[n])}{"," if n != names[-1] else ""}' for n in names)
            yield f"  }}{comma}"
        else:
            yield f'  "{key}": {_compact(value)}{comma}'


def _compact(value: object) -> str:
    text = msgspec.json.encode(value, order="sorted")
    return msgspec.json.format(text, indent=0).decode()


def from_json(data: bytes, source: str) -> Baseline:
    """Read a baseline back; `source` is named where it cannot be. Raises UnreadableTrace."""
    try:
        found = decode(data, BaselineFile)
    except msgspec.DecodeError as error:
        raise UnreadableTrace(
            f"{source}: is no baseline ({clean(str(error), 300)}); write one with `overlapscope baseline write`."
        ) from None
    if found.schema_version != SCHEMA_VERSION:
        raise UnreadableTrace(
            f"{source}: is a baseline of version {found.schema_version}, this is version {SCHEMA_VERSION}; {_ANEW}."
        )
    if found.digest != _digest(msgspec.json.decode(data)):
        raise UnreadableTrace(f"{source}: was changed after it was written, as its digest says; {_ANEW}.")
    baseline = Baseline(**{name: getattr(found, name) for name in Baseline.__struct_fields__})
    known = {(one.rank, one.device): one for one in baseline.devices}
    timed = {
        (one.rank, one.device, one.scope): len(one.values)
        for one in baseline.series
        if one.metric == "step_time" and one.cause is None
    }
    for line in baseline.series:
        samples = timed.get((line.rank, line.device, line.scope), 0)
        _check_line(line, known.get((line.rank, line.device)), samples, source)
    for one in baseline.devices:
        if one.steps and (one.rank, one.device, STEPS) not in timed:
            raise UnreadableTrace(f"{source}: device {one.device} has steps without a step_time; {_ANEW}.")
    return baseline


def _check_line(line: BaselineSeries, device: BaselineDevice | None, samples: int, source: str) -> None:
    """Raises UnreadableTrace where a line does not belong to the others, whatever the digest says."""
    what = f"{source}: {clean(line.metric, 80)} of device {line.device}"
    metric = METRICS.get(line.metric)
    if device is None or metric is None:
        raise UnreadableTrace(f"{what}: there is no such {'device' if device is None else 'metric'}; {_ANEW}.")
    for steps in (len(device.steps) if line.scope == STEPS else len(line.steps or ()), samples):
        if len(line.values) != steps:
            raise UnreadableTrace(f"{what}: has {len(line.values)} values for {steps} steps; {_ANEW}.")
    most = 100 if metric.unit == "pct" else MOST
    if not all(0 <= value <= most for value in line.values if value is not None):
        raise UnreadableTrace(f"{what}: has a value that it cannot have; {_ANEW}.")


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of a baseline."""
    return published(BaselineFile, "baseline")
