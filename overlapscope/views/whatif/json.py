"""A prediction as JSON; `overlapscope schema whatif` prints its schema."""

from __future__ import annotations

from typing import Any

import msgspec

from overlapscope.prediction.result import WhatIf
from overlapscope.report.model import published


def render(result: WhatIf) -> bytes:
    """The whole result, indented, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n"


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of a prediction."""
    return published(WhatIf, "whatif")
