"""Words for devices that are not GPUs, by their names in traces. Sentences are written for GPUs, and put into these."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct


class _DeviceWords(Struct, frozen=True):
    named: re.Pattern[str]
    """Names of such devices."""
    noun: str
    """Noun that follows `an`."""
    module: str
    """PyTorch's module and type of device, as in `torch.npu`."""


_WORDS: Final = (
    _DeviceWords(re.compile(r"Ascend\b.*"), "NPU", "npu"),
    _DeviceWords(re.compile(r"MTIA\b.*"), "MTIA", "mtia"),
)
_BEGIN, _END = "\ufdd0", "\ufdd1"
"""Marks around names from a recording. Unicode reserves these characters for use inside a program."""
_NAME: Final = re.compile(f"{_BEGIN}(.*?){_END}", re.DOTALL)
# Not in paths, addresses or options.
_GPU: Final = re.compile(r"(?<![\w./:<@-])(?P<a>[Aa] )?GPU(?=s?\b(?![/(<@-]|[.:]\w))")
_MODULE: Final = re.compile(r'(?<=torch\.)cuda\b|(?<=device=")cuda(?=")')
_UPPER: Final = re.compile(r"\bCUDA(?= graph)|(?<=\bPYTORCH_)CUDA(?=_ALLOC_CONF)")


def are_no_gpus(devices: Iterable[str | None]) -> bool:
    """Return whether these devices, given by name, are all of the same kind, which is not a GPU."""
    return _words_for(devices) is not None


def as_recorded(name: str) -> str:
    """Mark a name from a recording, so that `in_words_of` leaves it as it is; the text must pass through that."""
    return f"{_BEGIN}{name}{_END}" if name else ""


def in_words_of(devices: Iterable[str | None], text: str) -> str:
    """Return a text on GPUs in the words for these devices, which are given by name, without marks around names."""
    words = _words_for(devices)
    if words is None:
        return _NAME.sub(r"\1", text)
    # Every second part is a name.
    return "".join(part if at % 2 else _translated(words, part) for at, part in enumerate(_NAME.split(text)))


def _translated(words: _DeviceWords, text: str) -> str:
    text = _GPU.sub(lambda match: f"{match['a'][0]}n {words.noun}" if match["a"] else words.noun, text)
    text = _UPPER.sub(words.module.upper(), text)
    return _MODULE.sub(words.module, text)


def _words_for(devices: Iterable[str | None]) -> _DeviceWords | None:
    matched = [_of(name) for name in devices]
    return matched[0] if matched and all(other is matched[0] for other in matched) else None


def _of(name: str | None) -> _DeviceWords | None:
    return next((words for words in _WORDS if name is not None and words.named.fullmatch(name)), None)
