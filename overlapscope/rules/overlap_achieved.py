"""Rule: good news, since work that can run side by side does."""

from __future__ import annotations

from collections.abc import Iterator

from overlapscope.base.words import capital, duration, part_of, percent, share
from overlapscope.rules._claims import Claims
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule
from overlapscope.trace.lost import ENGINES

GOOD_PCT = 90.0


def _check(claims: Claims) -> Iterator[Draft]:
    overlap, engines, steps = claims.overlap, claims.engines, max(1, claims.steps)
    efficiency = overlap.efficiency_pct
    if efficiency is None or efficiency < GOOD_PCT or not claims.matters(overlap.copy_ns * steps):
        return
    if claims.analysis.result.trust.lost & ENGINES:
        return
    longest = max(
        ("compute", engines.sm_ns),
        ("H2D copies", engines.h2d_ns),
        ("D2H copies", engines.d2h_ns),
        key=lambda e: e[1],
    )
    beyond = overlap.busy_ns - overlap.ideal_ns
    a_step = claims.a_step
    if longest[0] == "compute":
        hidden = part_of(overlap.hidden_copy_ns, overlap.copy_ns)
        message = f"{hidden} of copies{a_step} are hidden under compute (overlap efficiency {percent(efficiency)})"
        title = capital(message)
        some_exposed = claims.matters(claims.buckets.exposed_copy_ns)
        advice = (
            "Look at the other findings first."
            if some_exposed
            else "Leave the copies as they are: the rest of the time is compute and idle gaps."
        )
    else:
        title = (
            f"The {longest[0][:3]} link limits the speed: copies overlap as far as they can, and "
            f"{claims.time(claims.buckets.exposed_copy_ns)}{a_step} still run alone (overlap efficiency "
            f"{percent(efficiency)})"
        )
        advice = advice_by_case("overlap-achieved", claims.gpu)["copies-longest"]
    yield Draft(
        title=title,
        detail=f"Kernels and copies together took {duration(overlap.busy_ns)}{a_step}. The longest of them alone, "
        f"{longest[0]}, took {claims.time(longest[1])}, which is the ideal. At most {duration(beyond)} "
        f"({share(beyond * steps, claims.judged_ns)}) is left to gain. One after the other they would have taken "
        f"{duration(overlap.serial_ns)}.",
        advice=advice,
    )


RULE = Rule(
    id="overlap-achieved",
    severity="info",
    check=_check,
    rests_on=ENGINES,
)
