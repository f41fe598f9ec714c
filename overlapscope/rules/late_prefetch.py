"""Rule: copies that begin too late to be hidden."""

from __future__ import annotations

from collections.abc import Iterator

from overlapscope.catalog.advice import in_words_of
from overlapscope.catalog.causes import CopyCause
from overlapscope.rules._claims import Claims
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule, claimed
from overlapscope.trace.model import Kind

_REASONS = {
    CopyCause.LATE_ISSUE: (
        "Copies issued too late run alone for",
        "began as soon as it was issued, but the compute that could have hidden it had already ended",
    ),
    CopyCause.EVENT_WAIT: (
        "Copies held by an event wait run alone for",
        "was issued in time, but an event wait kept copy and compute apart: either the copy waited for "
        "compute to end, or the next compute waited for the copy",
    ),
    CopyCause.ENGINE_BUSY: (
        "Copies queued behind other copies run alone for",
        "was queued behind other copies of the same direction, or held such a copy up, until compute had run out",
    ),
}
"""Title and evidence by cause."""


def _check(claims: Claims) -> Iterator[Draft]:
    late, cases = claims.of("late-prefetch"), advice_by_case("late-prefetch", claims.gpu)
    for cause, (title, seen) in _REASONS.items():
        pieces = late.with_copy_cause(cause)
        if not claims.matters(pieces.time_ns):
            continue
        rebuilt = any(
            e.subject == "exposed-copy" and e.cause == cause and e.confidence == "rebuilt"
            for e in claims.device.result.evidence
        )
        kinds = claims.device.timeline.ops.kind[pieces.copy]
        download = 2 * int(pieces.length_ns[kinds == Kind.D2H].sum()) > pieces.time_ns
        advice = cases[cause]
        if download and cause != CopyCause.ENGINE_BUSY:
            advice = in_words_of(claims.trace.framework, "two-way", cases[f"{cause}-of-downloads"])
        doubt = " The recording does not say which event was waited for; it was rebuilt from the timeline." * rebuilt
        yield claimed(
            claims,
            pieces,
            Draft(
                title=f"{title} {claims.time_a_step(pieces.time_ns)}",
                detail=f"In {claims.times_a_step(len(pieces.copies), 'case')} the copy {seen} (cause {cause}).{doubt}",
                advice=advice,
                for_all=cause == CopyCause.ENGINE_BUSY or download,
                # No intervention loosens an event wait, changes the order in a queue, or downloads earlier.
                fixes=None if cause == CopyCause.LATE_ISSUE and not download else (),
            ),
        )


RULE = Rule(
    id="late-prefetch",
    check=_check,
    fixes=(("prefetch",),),
)
