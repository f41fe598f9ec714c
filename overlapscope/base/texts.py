"""Texts in TOML files of the package, which are read when one is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def read_texts(path: Path, type: type[T]) -> T:
    """Return the texts of a file. Lines of a paragraph are joined, and empty lines separate paragraphs."""
    import tomllib

    return msgspec.convert(_joined(tomllib.loads(path.read_text(encoding="utf-8"))), type, str_keys=True)


def _joined(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _joined(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_joined(each) for each in value]
    if isinstance(value, str):
        return "\n".join(" ".join(paragraph.split()) for paragraph in value.strip().split("\n\n"))
    return value
