"""Rule: copies on the stream of the compute that could hide them."""

from __future__ import annotations

from overlapscope.analysis import calls as call_kinds
from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, distinct
from overlapscope.catalog.advice import in_words_of
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._features import SAVE_LESS, are_saved_tensors
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule, on_claimed, streams
from overlapscope.trace.model import Kind

_DOWNLOAD_TOO = " Give downloads a third stream, which waits for an event after the op that computes the data."
_UPLOAD_TOO = " Issue uploads on another stream, one step ahead of their use."


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    ops = claims.device.timeline.ops
    stream, kind = ops.stream, ops.kind[pieces.copies]
    used = distinct(stream[pieces.copies])
    rest = claims.unhideable()
    rest = rest.take(among(stream[rest.copy], used))
    other = bool((kind != kind[0]).any())
    download = 4 * int(pieces.length_ns[ops.kind[pieces.copy] == Kind.D2H].sum()) > 3 * pieces.time_ns
    cases = advice_by_case("same-stream", claims.gpu)
    saved = are_saved_tensors(claims, pieces.copies)
    if saved:
        advice = SAVE_LESS
    elif download:
        advice = in_words_of(claims.trace.framework, "two-way", cases["download"]) + _UPLOAD_TOO * other
    else:
        advice = cases["upload"] + _DOWNLOAD_TOO * other
    of_graph = call_kinds.named(claims.trace.runtime_calls, call_kinds.GRAPH_LAUNCH)
    if pick(of_graph, ops.launch[pieces.copies], False).any():
        advice += claims.filled(" Fork that stream with events while the {graph} is captured.")
    more = ""
    blocking = int(among(pieces.copies, claims.blocking).sum())
    if blocking:
        waits = claims.times_a_step(blocking, "wait")
        more = f" The host also waited for copies ({waits}, no non_blocking=True), which must change too."
    if rest.time_ns:
        more += (
            f" Another {claims.time(rest.time_ns)} of copies on that stream cannot be hidden in any order, "
            "because "
            "copies outlast compute. It is not counted here."
        )
    return Draft(
        title=f"Copies on the compute stream run alone for {claims.time_a_step(pieces.time_ns)}",
        detail=f"{claims.times_a_step(len(pieces.copies), 'copy')} on {streams(used.tolist())} ran in order with the "
        f"compute of the same stream, so neither could run beside the other.{more}",
        advice=advice,
        for_all=download,
        fixes=() if saved else None,
    )


RULE = Rule(
    id="same-stream",
    check=on_claimed("same-stream", _draft),
    fixes=(
        ("side-stream",),
        ("side-stream", "prefetch"),
        ("non-blocking", "side-stream"),
        ("non-blocking", "side-stream", "prefetch"),
    ),
)
