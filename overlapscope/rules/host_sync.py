"""Rule: the host waits for the GPU, then the GPU waits for the host."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.host import around, outermost_around
from overlapscope.base.columns import pick
from overlapscope.catalog.names import op_words
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.finding import Where
from overlapscope.rules.rule import Draft, Rule, lost, name, on_claimed

_SYNCHRONIZES = {
    "cudaDeviceSynchronize": "torch.{cuda}.synchronize()",
    "cudaStreamSynchronize": "torch.{cuda}.Stream.synchronize()",
}
_OUTER = {
    "aten::copy_": "copy_()",
    "aten::index": "tensor[mask]",
    "aten::index_put_": "tensor[mask] = value",
    "aten::to": ".cpu() or .to()",
}
"""Source code for the outermost op around a wait."""
_SHAPED = frozenset({"aten::nonzero", "aten::masked_select", "aten::unique", "aten::_unique2", "aten::index"})


def _advice(claims: Claims, where: Where | None) -> str:
    """Return what to change at the costliest place."""
    cases = advice_by_case("host-sync", claims.gpu)
    op, call = (where.op or "", where.call or "") if where is not None else ("", "")
    if op_words(op) in (".item()", "if tensor:"):
        return cases["item"]
    if op in _SHAPED:
        return cases["shape"].format(op=op.removeprefix("aten::"))
    if op in ("aten::copy_", "aten::_to_copy", "aten::to"):
        return cases["download"]
    # Without ops in the recording, any of them may have made the call.
    written = "" if op or not len(claims.trace.cpu_ops) else claims.filled(_SYNCHRONIZES.get(call, ""))
    return cases["synchronize"].format(call=written) if written else cases["other"]


def _waits(claims: Claims, pieces: ClaimedPieces, where: Where | None) -> str:
    """Return what waits, such as `The host waits for the GPU in .item()`."""
    text = "" if where is None else where.op or where.call or ""
    if claims.trace.framework == "pytorch":
        text = _outermost(claims, pieces, where) or op_words(text)
    return f"The host waits for the {claims.gpu}{f' in {name(text)}' if text else ''}"


def _outermost(claims: Claims, pieces: ClaimedPieces, where: Where | None) -> str:
    """Return source code for the outermost op around the longest wait of a place; empty if unknown."""
    ops = claims.trace.cpu_ops
    inner = around(ops, pieces.thread, pieces.at_ns)
    here = pick(ops.named(lambda op: where is not None and op == where.op), inner, False)
    if not here.any():
        return ""
    longest = np.argmax(np.where(here, pieces.length_ns, -1)).reshape(1)
    (outer,) = outermost_around(ops, pieces.thread[longest], pieces.at_ns[longest]).tolist()
    return _OUTER.get(ops.name(outer), "")


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    places = claims.places(pieces)
    where = places[0].where if places else None
    return Draft(
        title=f"{_waits(claims, pieces, where)}, which costs {claims.time_a_step(pieces.time_ns)}",
        detail="The host waited in a blocking call and launched the next work only after the call returned. "
        f"Because of that, {lost(claims, pieces)}.",
        advice=_advice(claims, where),
    )


RULE = Rule(
    id="host-sync",
    check=on_claimed("host-sync", _draft),
    effort="line",
    fixes=(("no-sync {call}",),),
)
