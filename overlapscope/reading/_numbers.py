"""Numbers of untyped JSON, exactly: however long an exponent, reading one takes no longer than its text is."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

_CONTEXT = Context(prec=100, Emin=-40, Emax=40, traps=[])
"""What no time, size or identity reaches is rounded to zero or infinity, and what is no number becomes NaN. Without
such bounds `1e99999999` would be made an integer of a hundred million digits."""


def decimal(text: str) -> Decimal:
    """The number that a text states: infinite or zero from 41 digits on before or behind the point; NaN for none."""
    return _CONTEXT.create_decimal(text)


def to_number(value: Any) -> Decimal | None:
    """The finite number in a JSON value or in its text, hexadecimal included; None where there is none."""
    if isinstance(value, str):
        if len(value) >= 64:
            return None
        value = value.strip()
        if value[:2].lower() == "0x":
            try:
                value = int(value, 16)
            except ValueError:
                return None
    elif isinstance(value, float):
        value = repr(value)
    elif isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    number = _CONTEXT.create_decimal(value)
    return number if number.is_finite() else None
