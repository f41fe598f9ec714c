"""The blocks of the documentation: commands and code for a reader to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {ROOT / line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()}
PAGES = {page for room in ("guides", "reference") for page in (DOCS / room).glob("*.md")} - GENERATED
TAUGHT = [DOCS / "index.md", DOCS / "tutorial.md", *sorted(PAGES - {DOCS / "reference" / "sources.md"})]
"""The pages whose fenced blocks are run. `test_ci_recipes.py` runs those of YAML and Groovy, `test_sources.py` those of
`sources.md`."""


class CodeBlock(Struct, frozen=True):
    """A fenced block."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str
    """Reason, if the page states it."""

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[CodeBlock]:
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(
        r"(?:<!-- not run: (.*?) -->\n\n?)?^( *)```(\w*)\n(.*?)^\2```$", text, re.DOTALL | re.MULTILINE
    ):
        inner = re.sub(rf"^{match[2]}", "", match[4], flags=re.MULTILINE)
        yield CodeBlock(page, text.count("\n", 0, match.start()) + 1, match[3], inner, match[1] or "")


def lines(text: str) -> Iterator[str]:
    """Lines of a shell, continued ones joined, without comments."""
    for line in text.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield shlex.join(words)


BLOCKS = [block for page in TAUGHT if page.exists() for block in blocks(page)]
"""Blocks of all pages for readers."""
