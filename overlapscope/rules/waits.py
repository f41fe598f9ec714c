"""Rules: calls in which the host waits for the GPU, or the driver works on memory, while the GPU has nothing to do."""

from __future__ import annotations

from collections import Counter

import numpy as np

from overlapscope.base.columns import pick
from overlapscope.base.grouping import distinct
from overlapscope.base.words import listed
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._program import SAVE_LESS, are_saved_tensors
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule, lost, name
from overlapscope.trace import calls as call_kinds
from overlapscope.trace.host import Where, around, outermost_around
from overlapscope.trace.model import Kind
from overlapscope.trace.op_names import op_words

# -- host-sync ---------------------------------------------------------------------------------------

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


@Rule("host-sync", effort="line", fixes=(("no-sync {call}",),)).on_claimed
def _host_sync(claims: Claims, pieces: ClaimedPieces) -> Draft:
    places = claims.places(pieces)
    where = places[0].where if places else None
    text = "" if where is None else where.op or where.call or ""
    if claims.trace.framework == "pytorch":
        text = _outermost(claims, pieces, where) or op_words(text)
    place = f" in {name(text)}" if text else ""
    return Draft(
        title=f"The host waits for the {claims.gpu}{place}, which costs {claims.time_a_step(pieces.time_ns)}",
        detail="The host waited in a blocking call and launched the next work only after the call returned. "
        f"Because of that, {lost(claims, pieces)}.",
        advice=_advice(claims, where),
    )


# -- blocking-copy ---------------------------------------------------------------------------------

_AFTERWARDS = {
    Kind.H2D: "After an upload nothing else is needed: ops of the same stream, and of streams that wait for it, see "
    "the data.",
    Kind.D2H: "After a download, synchronize an event or the stream before the host reads the buffer, as late as "
    "possible.",
}


@Rule("blocking-copy", effort="option", fixes=(("non-blocking",),)).on_claimed
def _blocking_copy(claims: Claims, pieces: ClaimedPieces) -> Draft:
    called = "without non_blocking=True" if claims.trace.framework == "pytorch" else "that block the host"
    kind = claims.device.timeline.ops.kind[claims.blocking]
    afterwards = [text for each, text in _AFTERWARDS.items() if (kind == each).any()]
    saved = are_saved_tensors(claims, claims.blocking)
    return Draft(
        title=f"Copies {called} cost {claims.time_a_step(pieces.time_ns)}",
        detail="The host waited inside each copy until the copy ended, which its memory does not require, and launched "
        f"more work only then. Because of that, {lost(claims, pieces)}.",
        fixes=() if saved else None,
        advice=SAVE_LESS if saved else "Pass non_blocking=True to copy_() and to().\n" + " ".join(afterwards),
    )


# -- Memory of the host and of the GPU ----------------------------------------------------------------


@Rule("allocation", effort="option").on_claimed
def _allocation(claims: Claims, pieces: ClaimedPieces) -> Draft:
    calls = claims.trace.runtime_calls
    behind = Counter(calls.name(int(row)) for row in distinct(pieces.call[pieces.call >= 0]))
    counts = listed([f"{claims.times(count, 'call')} of {name(call)}" for call, count in behind.most_common(4)])
    return Draft(
        title=f"{claims.waits(pieces)} while the driver allocates or frees memory",
        detail="The host was inside a memory call of the driver and could not launch: "
        f"{f'{counts}{claims.a_step}' if counts else 'the calls are not recorded'}.",
    )


@Rule("pin-in-loop", effort="line", fixes=(("pin",),)).on_claimed
def _pin_in_loop(claims: Claims, pieces: ClaimedPieces) -> Draft:
    calls = claims.trace.runtime_calls
    behind = distinct(pieces.call[pieces.call >= 0])
    locking = behind[call_kinds.pins(calls)[behind]]
    took = int((calls.end_ns[locking] - calls.start_ns[locking]).sum())
    locked = f" {claims.times_a_step(len(locking), 'call')} that page-lock memory took {claims.time(took)}."
    return Draft(
        title=f"{claims.waits(pieces)} while the host pins memory",
        detail="Pinning copies the data once more on the host. Unless the allocator has a block of that size to spare, "
        "it also asks the driver to page-lock new memory, which takes about as long as many "
        f"copies.{locked if len(locking) else ''}",
    )
