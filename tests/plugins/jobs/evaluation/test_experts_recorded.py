"""Recordings of two experts on H200s, of which one gets most tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overlapscope import load
from overlapscope.ranks.reduced import reduce
from overlapscope.ranks.verdict import judge
from tests.evaluation.test_collectives import folder, ns, report

__all__ = ["folder"]


def test_the_rank_whose_expert_gets_most_tokens_is_named_with_its_reason(folder: Path) -> None:
    verdict = judge(report(folder / "two-experts-skew"))
    assert verdict.lead.startswith("Rank 0 delays the other rank by up to 47.")
    assert verdict.rest[0].startswith("Rank 0 computes 46.")
    assert verdict.rest[1] == (
        "Its experts receive 1.60 times as many rows as those of the mean rank; after 16 of 16 such exchanges the rank "
        "that received most comes last to the next collective."
    )


def test_what_experts_send_and_receive_is_what_the_raw_files_say(folder: Path) -> None:
    """Sum up the split sizes of the steps that both ranks have whole, by the times in the files."""
    path = folder / "two-experts-skew"
    result = report(path)
    (exchange,) = result.parts["jobs"].experts
    assert (exchange.element_bytes, exchange.compared) == (2, 16)
    for row in exchange.ranks:
        rank = reduce(load(str(path / f"rank{row.rank}.trace.json")))[0]
        raw = json.loads(Path(rank.source).read_bytes(), parse_float=str)
        whole = rank.steps.judged.nonzero()[0].tolist()
        begin = int(rank.steps.start_ns[whole[0]])
        end = int(rank.steps.start_ns[whole[-1]] + rank.steps.span_ns[whole[-1]])
        count = sent = received = sent_rows = received_rows = loaded_rows = 0
        for event in raw["traceEvents"]:
            args = event.get("args", {})
            if event.get("cat") != "kernel" or args.get("In split size", "[]") == "[]":
                continue
            if begin <= ns(event["ts"]) + raw["baseTimeNanoseconds"] < end:
                out, back = (sum(json.loads(args[f"{side} split size"])) for side in ("In", "Out"))
                count, sent_rows, received_rows = count + 1, sent_rows + out, received_rows + back
                sent, received = sent + args["In msg nelems"], received + args["Out msg nelems"]
                # Each rank has 8192 tokens, which come back to it.
                loaded_rows += back if out == 8192 else 0
        counts = (row.count, row.sent_elements, row.received_elements, row.sent_rows, row.received_rows)
        assert counts == (count, sent, received, sent_rows, received_rows)
        assert row.loaded_rows == loaded_rows
        assert row.load == pytest.approx(loaded_rows / (16 * 8192))
