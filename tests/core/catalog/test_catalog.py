"""Tests of the catalogue: everything in an analysis has a record, and records refer to existing things."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from msgspec.structs import asdict

import overlapscope as ov
from overlapscope.base.words import GPU, fill
from overlapscope.catalog import causes
from overlapscope.catalog.advice import NAMES, advice_of
from overlapscope.catalog.causes import CAUSES
from overlapscope.catalog.checks import trust_checks
from overlapscope.catalog.interventions import INTERVENTIONS
from overlapscope.rules import RULES

TRACE = Path(__file__).parents[3] / "traces" / "gpt2_train.json.gz"


def test_every_cause_has_words_and_nothing_else_has() -> None:
    texts = tomllib.loads((Path(causes.__file__).parent / "causes.toml").read_text())
    assert {subject: list(of) for subject, of in texts.items()} == {subject: list(of) for subject, of in CAUSES.items()}
    for subject, cause in ((subject, cause) for subject, of in CAUSES.items() for cause in of.values()):
        words = cause.words
        assert set(asdict(words)) >= texts[subject][cause].keys()
        assert words.meaning == fill(" ".join(texts[subject][cause]["meaning"].split()), GPU)
        assert words.meaning.endswith(".") and not words.evidence.endswith(".")
        assert not words.remedy or words.remedy.endswith(".")


def test_causes_name_rules_that_there_are() -> None:
    causes = [cause for of in CAUSES.values() for cause in of.values()]
    named = {rule for cause in causes for rule in (cause.rule, *cause.explained_by)}
    assert named - {""} <= set(RULES)


def test_every_trust_check_has_a_record() -> None:
    checks = [check.id for check in ov.analyze(ov.load(TRACE)).traces[0].trust.checks]
    # Only Nsight Systems records graphs as ops, and copies usually have a direction.
    assert sorted({*trust_checks()} - {"graphs", "copy-directions"}) == sorted(checks)


def test_advice_in_other_words_is_of_rules_and_interventions_that_there_are() -> None:
    for kind in (*NAMES, "other-devices"):
        words = advice_of(kind)
        assert words and {*words} <= {*RULES} | {*INTERVENTIONS}
        for advice in words.values():
            first, _, how = advice.partition("\n")
            assert first.endswith((".", ":")) and len(first) < 120 and "\n" not in how
            assert not re.search(r"torch|non_blocking|\.item\(\)|record_stream", advice)
