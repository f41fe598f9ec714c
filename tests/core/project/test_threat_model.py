"""The threat model promises nothing that no test holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "how-it-works" / "threat-model.md").read_text()


def test_every_promise_names_a_test_that_there_is() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", DOCUMENT)
    assert len(named) > 20
    for file, test in named:
        if (plugin := re.match(r"tests/plugins/\w+", file)) and not (ROOT / plugin[0]).exists():
            continue
        tree = ast.parse((ROOT / file).read_text())
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{test}"
    rows = [line for line in DOCUMENT.splitlines() if re.match(r"\| (?!promise)\w", line)]
    assert rows and all("`tests/" in row for row in rows)


def test_it_is_linked_from_where_it_is_looked_for() -> None:
    for page in ("reference/dashboard", "reference/ci", "how-it-works/cache"):
        assert "threat-model.md" in (ROOT / "docs" / f"{page}.md").read_text()
