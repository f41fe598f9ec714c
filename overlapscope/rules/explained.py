"""Explanations of the rules: `explained.toml` and the programs in `examples`, next to the module of each rule."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from overlapscope.base.texts import read_texts
from overlapscope.rules import RULES


class Explanation(Struct, frozen=True, forbid_unknown_fields=True):
    """Words of a rule."""

    summary: str
    """One line."""
    meaning: str
    """Meaning, and why it costs time."""
    computation: str
    """Computation, including the bound on the saving."""


def explanation(rule: str) -> Explanation:
    """Return the words of a rule."""
    return _explanations(_folder(rule))[rule]


def examples(rule: str) -> tuple[str, str]:
    """Return a minimal program with the problem, and the same without it."""
    paths = (_folder(rule) / "examples" / f"{rule.replace('-', '_')}_{word}.py" for word in ("wrong", "right"))
    wrong, right = (path.read_text(encoding="utf-8") for path in paths)
    return wrong, right


@cache
def _explanations(folder: Path) -> dict[str, Explanation]:
    return read_texts(folder / "explained.toml", dict[str, Explanation])


def _folder(rule: str) -> Path:
    """Return the folder of a rule's module."""
    spec = find_spec(RULES.module(rule))
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent
