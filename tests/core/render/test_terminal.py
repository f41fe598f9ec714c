"""Documents as text for a terminal."""

from __future__ import annotations

from overlapscope.documents.model import Code, Document
from overlapscope.render import terminal


def test_a_long_command_stays_on_a_line_of_its_own_so_that_it_can_be_copied() -> None:
    command = f"overlapscope diff /{'before/' * 20}a.json /{'after/' * 20}b.json"
    page = Document("page", (Code(f"git show 1234567\n{command}", title="See it"),))
    assert terminal.render(page, width=80) == f"See it\n    git show 1234567\n    {command}\n"
    assert f"    {command}" in terminal.render(page, width=80, color="standard")
