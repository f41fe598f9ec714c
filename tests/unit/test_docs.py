"""The pages in `docs/` and the ones at the top: what they point at is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)\s#]+)", page.read_text(encoding="utf-8"))
    assert {target for target in targets if not (page.parent / target).exists()} == set()
