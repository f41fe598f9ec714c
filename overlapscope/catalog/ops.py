"""Names of ops as people know them from their programs."""

from __future__ import annotations

import re
from typing import Final

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
