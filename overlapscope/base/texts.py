"""Texts in TOML files of the package, which are read when one is needed, and their words for devices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")
GPU: Final = "GPU"
_OTHERS: Final = {"Ascend": "NPU", "MTIA": "MTIA"}
"""Nouns for other devices, by the first word of their names. In lower case, they are PyTorch's modules for them."""


def noun_for(devices: Iterable[str | None]) -> str:
    """Return the noun for devices, given by name. Devices of several kinds are called GPUs."""
    kinds = {_OTHERS.get(re.split(r"\W", name or "", maxsplit=1)[0], GPU) for name in devices}
    return kinds.pop() if len(kinds) == 1 else GPU


def fill(text: str, gpu: str) -> str:
    """Return a text with the words for a device in place of `{gpu}`, `{cuda}`, `{CUDA}` and `{graph}`."""
    module = "cuda" if gpu == GPU else gpu.lower()
    words = {"gpu": gpu, "cuda": module, "CUDA": module.upper(), "graph": f"{module.upper()} graph"}
    for field, word in words.items():
        text = text.replace(f"{{{field}}}", word)
    return text


def read_texts(path: Path, type: type[T], gpu: str = GPU) -> T:
    """Return the texts of a file, with the words for a device.

    Lines of a paragraph are joined, and empty lines separate paragraphs.
    """
    import tomllib

    import msgspec

    return msgspec.convert(_joined(tomllib.loads(fill(path.read_text(encoding="utf-8"), gpu))), type, str_keys=True)


def _joined(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _joined(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_joined(each) for each in value]
    if isinstance(value, str):
        return "\n".join(" ".join(paragraph.split()) for paragraph in value.strip().split("\n\n"))
    return value
