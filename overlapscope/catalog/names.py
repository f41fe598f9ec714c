"""Words for what a recording names: its devices, ops and recorder.

Sentences are written for GPUs, and put into the words for devices that are not GPUs, by their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from overlapscope.plugin import Recorder, plugins


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
_GPU: Final = r"(?<![\w./:<@-])(?P<a>[Aa] )?GPU(?=s?\b(?![/(<@-]|[.:]\w))"
_MODULE: Final = r'(?<=torch\.)cuda\b|(?<=device=")cuda(?=")'
_UPPER: Final = r"\bCUDA(?= graph)|(?<=\bPYTORCH_)CUDA(?=_ALLOC_CONF)"


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
    text = re.sub(_GPU, lambda match: f"{match['a'][0]}n {words.noun}" if match["a"] else words.noun, text)
    text = re.sub(_UPPER, words.module.upper(), text)
    return re.sub(_MODULE, words.module, text)


def _words_for(devices: Iterable[str | None]) -> _DeviceWords | None:
    matched = {next((words for words in _WORDS if words.named.fullmatch(name or "")), None) for name in devices}
    return matched.pop() if len(matched) == 1 else None


# -- Ops ---------------------------------------------------------------------------------------------

_CALLS: Final = {
    "aten::_local_scalar_dense": ".item()",
    "aten::item": ".item()",
    "aten::is_nonzero": "if tensor:",
    "cudaDeviceSynchronize": "torch.cuda.synchronize()",
}
"""What a program writes for ops and calls that it does not name itself."""
_BACKWARD: Final = re.compile(r"autograd::engine::evaluate_function: (.+)", re.DOTALL)


def op_words(name: str | None) -> str:
    """Return an op as people know it: `.item()` for `aten::_local_scalar_dense`, `ViewBackward0` for its wrapper.

    Empty for None.
    """
    if name is None:
        return ""
    if match := _BACKWARD.fullmatch(name):
        return match[1]
    return _CALLS.get(name, name)


# -- Recorders ---------------------------------------------------------------------------------------

_OF_CORE: Final = {
    recorder.id: recorder
    for recorder in (
        Recorder(
            "kineto",
            "torch.profiler",
            gpu_activity="ProfilerActivity.CUDA",
            launches="Record with ProfilerActivity.CPU and ProfilerActivity.CUDA.",
            sync_events="Record with enable_cuda_sync_events=True.",
        ),
    )
}


def recorder_by_id(id: str) -> Recorder:
    """Return the record of a recorder; generic words for an unknown one."""
    of_plugins = (source.recorder for each in plugins() for source in each.sources)
    return next((recorder for recorder in (*_OF_CORE.values(), *of_plugins) if recorder.id == id), None) or Recorder(
        id,
        id,
        gpu_activity="GPU activity",
        launches="Record the calls of the CUDA runtime too.",
        sync_events="Record synchronization events, if the profiler can.",
    )
