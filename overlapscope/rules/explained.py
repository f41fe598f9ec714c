"""Texts of the rules: a file in `explained` and two programs in `examples`, next to the module of each rule."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from overlapscope.base.words import GPU, read_texts
from overlapscope.rules import RULES


class RuleTexts(Struct, frozen=True, forbid_unknown_fields=True):
    """Texts of a rule."""

    summary: str
    """One line."""
    meaning: str
    """Meaning, and why it costs time."""
    computation: str
    """Computation, including the bound on the saving."""
    advice: dict[str, str] = {}
    """Advice of its findings by case, as far as it is the same in every finding; `fix` if there is a single case."""


@cache
def explanation(rule: str, gpu: str = GPU) -> RuleTexts:
    """Return the texts of a rule, in the words for a device."""
    return read_texts(_folder(rule) / "explained" / f"{rule}.toml", RuleTexts, gpu)


def advice_by_case(rule: str, gpu: str) -> Mapping[str, str]:
    """Return the advice of a rule by case, in the words for a device."""
    return explanation(rule, gpu).advice


def examples(rule: str) -> tuple[str, str]:
    """Return a minimal program with the problem, and the same without it."""
    paths = (_folder(rule) / "examples" / f"{rule.replace('-', '_')}_{word}.py" for word in ("wrong", "right"))
    wrong, right = (path.read_text(encoding="utf-8") for path in paths)
    return wrong, right


def _folder(rule: str) -> Path:
    """Return the folder of a rule's module."""
    spec = find_spec(RULES.module(rule))
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent
