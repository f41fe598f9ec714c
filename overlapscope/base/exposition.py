"""Lines of an OpenMetrics 1.0 exposition, which Prometheus reads.

https://prometheus.io/docs/specs/om/open_metrics_spec/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Labels = dict[str, str]


def family(
    name: str, help_text: str, samples: Sequence[tuple[Labels, float]], *, unit: str | None = None
) -> Iterator[str]:
    """Return the lines of a gauge; none without samples. A name ends in its unit."""
    if not samples:
        return
    yield f"# TYPE {name} gauge"
    if unit is not None:
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {help_text}"
    for labels, value in samples:
        yield f"{name}{_written(labels)} {value!r}"


def text(lines: Iterable[str]) -> str:
    """Return the complete exposition."""
    return "\n".join([*lines, "# EOF"]) + "\n"


def _written(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
