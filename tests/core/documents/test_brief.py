"""Tests of what the short form of a document leaves out, and how it says so."""

from __future__ import annotations

from overlapscope.documents.model import Block, Document, FindingBlock, Section, Text, brief, detail
from overlapscope.render import html, markdown, terminal

FINDING = FindingBlock(
    severity="warning",
    rule="pageable-memory",
    title="Copies of pageable memory cost 7.5 ms",
    cost="saves about 6.6 ms",
    evidence=("Two copies blocked the host.",),
    line="train.py:13 in upload",
    call="aten::copy_",
    advice="Pin the host memory once.\nUse DataLoader(pin_memory=True).",
    proof="overlapscope whatif a.json --pin",
)


def written(*blocks: Block) -> Document:
    return Document("a document", (Text("The answer."), *blocks))


def test_details_are_left_out_and_named_once_in_the_last_line() -> None:
    engines = detail("engines", [Text("H2D worked for 3 ms.")])
    shown = brief(written(*engines, Section((*engines, *detail("stalls", [Text("One call blocked.")])), "A part")))
    text = terminal.render(shown)
    assert "H2D" not in text
    assert "One call blocked" not in text
    assert text.splitlines()[-1] == "Add -v for engines and stalls."


def test_a_finding_keeps_its_cost_its_line_of_code_one_line_of_advice_and_the_command_that_proves_it() -> None:
    shown = brief(written(FINDING))
    for text in (terminal.render(shown), markdown.render(shown)):
        for kept in (
            "cost 7.5 ms",
            "aves about 6.6 ms",
            "train.py:13 in upload",
            "Pin the host memory once.",
            "whatif a.json --pin",
        ):
            assert kept in text
        for left_out in ("Two copies", "copy_", "DataLoader"):
            assert left_out not in text
        assert text.rstrip().endswith("Add -v for evidence.")


def test_a_document_without_details_is_as_it_was() -> None:
    document = written(*detail("nothing", ()))
    assert brief(document) == document


def test_every_renderer_draws_what_is_left_in() -> None:
    whole = written(*detail("engines", [Text("H2D worked for 3 ms.")]), FINDING)
    for text in (terminal.render(whole), markdown.render(whole), html.render(whole)):
        for excerpt in ("H2D worked for 3 ms", "Two copies blocked", "DataLoader", "whatif a.json --pin"):
            assert excerpt in text
