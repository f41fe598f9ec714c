"""Export of the history as a table with a row for each report, device and metric."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

from overlapscope.base.extras import how_to_install
from overlapscope.base.words import in_spreadsheet
from overlapscope.errors import MissingPackage, UsageError
from overlapscope.history.store import Store

if TYPE_CHECKING:
    import pandas as pd

_TEXTS = ("job", "commit", "branch", "host", "labels", "gpu")
"""Columns with text from outside."""


def to_bytes(store: Store, suffix: str) -> bytes:
    """Return the table as a file of the type with this suffix. Raises UsageError, MissingPackage."""
    frame = to_frame(store)
    match suffix:
        case ".csv":
            for name in _TEXTS:
                frame[name] = frame[name].map(in_spreadsheet, na_action="ignore")
            return frame.to_csv(index=False, lineterminator="\n").encode("utf-8", "backslashreplace")
        case ".parquet":
            out = io.BytesIO()
            try:
                frame.to_parquet(out, index=False, engine="pyarrow")
            except ImportError:
                raise MissingPackage(f"Parquet needs pyarrow. {how_to_install('history')}") from None
            return out.getvalue()
    raise UsageError(f"there is no format for files that end in {suffix!r}; name one that ends in .csv or .parquet.")


def to_frame(store: Store) -> pd.DataFrame:
    """Return the table, oldest report first. `value` has the metric's unit (`budgets.metrics.METRICS`)."""
    import pandas as pd

    rows = store.rows()
    points = [point for metric in store.metrics() for point in ((metric, point) for point in store.points(metric))]
    figures = pd.DataFrame(
        (
            (point.id, metric, point.rank, point.device, point.value, point.spread, point.samples)
            for metric, point in points
        ),
        columns=["id", "metric", "rank", "device", "value", "spread", "samples"],
    ).astype({"rank": "Int64", "device": "int64", "samples": "int64", "value": "float64", "spread": "float64"})
    reports = pd.DataFrame(
        (
            (row.id, origin.at_ns, origin.job, origin.commit, origin.branch, origin.host, _labels(origin.labels))
            + (row.gpu, row.plain, row.outcome)
            for row in rows
            for origin in [row.origin]
        ),
        columns=["id", "at", *_TEXTS[:5], "gpu", "plain", "outcome"],
    )
    reports["at"] = pd.to_datetime(reports["at"], unit="ns", utc=True)
    return reports.merge(figures, on="id", how="inner", sort=False)


def _labels(labels: dict[str, str]) -> str:
    return json.dumps(labels, sort_keys=True)
