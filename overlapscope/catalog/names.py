"""Words for what a recording names: its ops and its recorder."""

from __future__ import annotations

import re
from typing import Final

from overlapscope.plugin import KINETO, Recorder, plugins

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


def recorder_by_id(id: str) -> Recorder:
    """Return the record of a recorder; generic words for an unknown one."""
    of_plugins = (source.recorder for each in plugins() for source in each.sources)
    return next((recorder for recorder in (KINETO, *of_plugins) if recorder.id == id), None) or Recorder(
        id,
        id,
        gpu_activity="GPU activity",
        launches="Record the calls of the CUDA runtime too.",
        sync_events="Record synchronization events, if the profiler can.",
    )
