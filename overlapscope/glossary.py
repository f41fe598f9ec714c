"""Every word that a report prints: its meaning, and the related causes, rules, interventions, metrics and checks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import Final

from msgspec import Struct

from overlapscope import catalog
from overlapscope.base.registry import load
from overlapscope.base.words import capital, did_you_mean, listed, read_texts
from overlapscope.catalog.advice import NAMES, advice_of
from overlapscope.catalog.buckets import BUCKETS, Bucket
from overlapscope.catalog.causes import CAUSES, JOINED_COMM_CAUSES, WORK_UNKNOWN, Cause, CopyCause, Subject
from overlapscope.catalog.checks import TrustCheck, trust_checks
from overlapscope.catalog.interventions import INTERVENTIONS, Intervention
from overlapscope.catalog.measures import MEASURES, METRICS, Measure
from overlapscope.documents.model import Block, Code, Document, Heading, Items, Text
from overlapscope.documents.table import Table, prose, rows, words
from overlapscope.errors import UsageError
from overlapscope.plugin import plugins
from overlapscope.rules import RULES
from overlapscope.rules.explained import examples, explanation
from overlapscope.rules.rule import Rule
from overlapscope.trace.lost import PARTS_IN_WORDS, reliance

_CAUSE: Final[dict[Subject, str]] = {
    "exposed-copy": "cause of exposed copies",
    "exposed-comm": "cause of exposed communication",
    "exposed-other": "kind of exposed memory work",
    "idle": "cause of idle time",
}
_UNITS: Final = {"pct": "a percentage", "ns": "a time", "gb_per_s": "a bandwidth", "launches": "a number"}
_BLAMED_BUCKETS: Final = {"compute": "kernels"}
"""Names that metrics have for a bucket, where they differ from the bucket's own."""
_OTHER_SPELLINGS: Final = {
    "efficiency": "overlap-efficiency",
    "exposed-other": "memset/d2d/p2p",
    "beside-it": "beside",
    "stall": "host-stall",
    "stall-cost": "host-stall",
    "eff.": "overlap-efficiency",
    "bubble": "pipeline-bubble",
    "load": "load-of-experts",
    "delay-of-others": "delay",
    "made-others-wait": "made-wait",
    "idle-caused": "gpu-idle",
}
"""Terms by their short forms in narrow tables and their names in JSON, in their plain spelling."""
_HEADING: Final = re.compile(
    r"^(?:\+/-|copy:|comm:|memory:|idle:) | a step(?= \w+$)|(?: by (?:cause|kernel)|,? (?:ns|us|ms|s|%)(?:: \w+)?)$"
)
"""Parts of a heading besides the word, such as the unit."""


class GlossaryEntry(Struct, frozen=True):
    """One meaning of a word."""

    word: str
    kind: str
    """Kind of word, such as `rule` or `cause of idle time`."""
    summary: str
    """One line."""
    blocks: tuple[Block, ...] = ()
    """Details."""


def explain(word: str) -> Document:
    """Return all meanings of a word. Raise UsageError if no report uses it."""
    matches = _entries_of(word) or _entries_of(_HEADING.sub("", word).replace("exp. ", "exposed "))
    if not matches:
        hint = did_you_mean(_plain(word), {_plain(entry.word) for entry in entries()})
        unknown = f"no report uses the word {word!r}{hint};"
        raise UsageError(
            f"{unknown} `overlapscope explain` lists all words.",
            for_assistants=f"{unknown} explain lists all words for the word `words`.",
        )
    blocks: list[Block] = []
    for entry in matches:
        blocks += [Heading(f"{entry.word} ({entry.kind})"), Text(entry.summary), *entry.blocks]
    return Document(word, tuple(blocks))


def _entries_of(word: str) -> list[GlossaryEntry]:
    """Return the meanings of a word, or of the singular that it is the plural of."""
    plain = _plain(word)
    single = plain.removesuffix("s")
    spellings = {_OTHER_SPELLINGS.get(plain, plain), _OTHER_SPELLINGS.get(single, single)}
    found = [entry for entry in entries() if _plain(entry.word) in spellings]
    return [entry for entry in found if _plain(entry.word) == plain] or found


def listing() -> Document:
    """Return all words, with one line each."""
    kinds: dict[str, list[GlossaryEntry]] = {}
    for entry in entries():
        kinds.setdefault(entry.kind, []).append(entry)
    tables = (
        Table("", (words(kind), prose("")), rows((entry.word, entry.summary) for entry in kind_entries))
        for kind, kind_entries in kinds.items()
    )
    return Document("Words", tuple(tables))


def _plain(word: str) -> str:
    """Return a word's plain spelling, which `exposed_copy_ns` shares with `exposed copy`, and `--pin` with `pin`."""
    return word.strip().lower().removesuffix("_ns").replace("_", "-").replace(" ", "-").strip("-")


@cache
def entries() -> tuple[GlossaryEntry, ...]:
    """Return every meaning of every word."""
    terms = read_texts(Path(catalog.__file__).with_name("terms.toml"), dict[str, str])
    return (
        *map(_rule, RULES.values()),
        *(_cause(cause, subject) for subject, causes in CAUSES.items() for cause in causes.values()),
        *map(_bucket, BUCKETS.values()),
        *map(_metric, METRICS.values()),
        *(_figure(measure) for measure in MEASURES.values() if measure.groups and "buckets" not in measure.groups),
        *map(_intervention, INTERVENTIONS.values()),
        *(entry for plugin in plugins() if plugin.words for entry in load(plugin.words)()),
        *starmap(_check, trust_checks().items()),
        *(GlossaryEntry(part, "part of a recording", f"{capital(text)}.") for part, text in PARTS_IN_WORDS.items()),
        *(GlossaryEntry(word, "term", meaning) for word, meaning in terms.items()),
    )


def titled(title: str, *sentences: str) -> tuple[Block, ...]:
    """Return a titled part; nothing if there are no sentences."""
    texts = tuple(filter(None, sentences))
    return (Heading(title, 3), Items(texts) if len(texts) > 1 else Text(texts[0])) if texts else ()


# -- Rules and interventions -----------------------------------------------------------------------


def _rule(rule: Rule) -> GlossaryEntry:
    causes = [
        f"{cause} ({_CAUSE[subject].removeprefix('cause of ')})"
        for subject, of_subject in CAUSES.items()
        for cause in of_subject.values()
        if rule.id == cause.rule or rule.id in cause.explained_by
    ]
    words, (wrong, right) = explanation(rule.id), examples(rule.id)
    return GlossaryEntry(
        rule.id,
        f"rule, {rule.severity}",
        words.summary,
        (
            Text(words.meaning),
            *titled("How it is computed", words.computation),
            *titled("What the fix saves", rule.cost),
            *titled("What it needs", reliance(rule.rests_on)),
            *titled(
                "Related",
                f"Explains the causes {listed(causes)}." if causes else "",
                _tried(_tries(rule)),
                f"`overlapscope check --forbid {rule.id}` fails if it fires.",
            ),
            Heading("Wrong", 3),
            Code(wrong.strip()),
            Heading("Right", 3),
            Code(right.strip()),
            *_elsewhere(rule.id),
        ),
    )


def _elsewhere(id: str) -> Iterator[Block]:
    """Yield the advice for programs that don't use PyTorch."""
    for framework, name in NAMES.items():
        yield from titled(f"In {name}", advice_of(framework).get(id, "").replace("\n", " "))


def _tries(rule: Rule) -> list[str]:
    """Return the ids of the interventions in a rule's fixes."""
    return list(dict.fromkeys(change.split()[0] for fix in rule.fixes for change in fix))


def _tried(interventions: Iterable[str]) -> str:
    options = [f"`--{intervention}`" for intervention in interventions]
    return f"`overlapscope whatif` predicts the fix with {listed(options)}." if options else ""


def _intervention(intervention: Intervention) -> GlossaryEntry:
    rules = [rule.id for rule in RULES.values() if intervention.id in _tries(rule)]
    return GlossaryEntry(
        intervention.id,
        "change of whatif",
        f"{capital(intervention.title)}.",
        (
            Text(intervention.texts.meaning),
            *titled("Assumptions", *(assumption.text for assumption in intervention.texts.assumptions)),
            *titled("The code to change", intervention.texts.advice),
            *_elsewhere(intervention.id),
            *titled(
                "Related",
                f"`overlapscope whatif TRACE --{intervention.id}` predicts it.",
                f"It fixes the findings of {listed(rules)}." if rules else "",
            ),
        ),
    )


# -- Causes, buckets and metrics -------------------------------------------------------------------


def _cause(cause: Cause, subject: Subject) -> GlossaryEntry:
    others = [rule for rule in cause.explained_by if rule != cause.rule]
    tried = _tries(RULES[cause.explained_by[0]]) if cause.explained_by else ()
    return GlossaryEntry(
        cause,
        _CAUSE[subject],
        cause.words.meaning,
        (
            *titled("How to fix it", cause.words.remedy),
            *titled(
                "Related",
                f"Found by rule {cause.rule}." if cause.rule else "",
                f"{'Also named' if cause.rule else 'Named'} by {listed(others)}." if others else "",
                _tried(tried),
                _counts(cause, subject),
            ),
        ),
    )


def _counts(cause: Cause, subject: Subject) -> str:
    if cause in (CopyCause.LEAD_IN, *JOINED_COMM_CAUSES, *WORK_UNKNOWN):
        return "It counts in no metric."
    left_out = () if cause.blames_call else ("host_stall_time",)
    return f"It counts in {listed(metric for metric in _blaming(subject) if metric not in left_out)}."


def _blaming(subject: str) -> list[str]:
    """Return the metrics that blame this kind of time."""
    return [metric.metric for metric in METRICS.values() if subject in metric.blames]


def _bucket(bucket: Bucket) -> GlossaryEntry:
    metrics = _blaming(_BLAMED_BUCKETS.get(bucket.id, bucket.id))
    causes: Mapping[str, Cause] = CAUSES[bucket.causes] if bucket.causes else {}
    return GlossaryEntry(
        bucket.name,
        "bucket",
        f"The time in which {bucket.meaning}.",
        titled(
            "Related",
            f"Its causes are {listed(causes)}." if causes else "",
            f"It counts in {listed(metrics)}." if metrics else "",
        ),
    )


def _metric(metric: Measure) -> GlossaryEntry:
    causes = [cause for subject in CAUSES if subject in metric.blames for cause in CAUSES[subject]]
    return GlossaryEntry(
        metric.metric,
        "metric of check",
        f"{capital(metric.meaning)}.",
        (
            Text(_direction(metric.unit, bool(metric.more_is_better))),
            *titled("What it needs", reliance(metric.rests_on)),
            *titled(
                "Related",
                f"Explained by the causes {listed(dict.fromkeys(causes))}." if causes else "",
                f"`overlapscope check --explain {metric.metric}` shows how a value is computed.",
            ),
        ),
    )


def _figure(measure: Measure) -> GlossaryEntry:
    """Return a figure that is neither a bucket nor a metric."""
    return GlossaryEntry(
        measure.label,
        "figure",
        f"{capital(measure.meaning)}.",
        (
            Text(_direction(measure.unit, measure.more_is_better)),
            *titled("What it needs", reliance(measure.rests_on)),
            *titled("In JSON", f"`{measure.groups[0]}.{measure.id}`."),
        ),
    )


def _direction(unit: str, more_is_better: bool | None) -> str:
    better = "" if more_is_better is None else f"; {'more' if more_is_better else 'less'} is better"
    return f"It is {_UNITS[unit]}{better}."


def _check(id: str, check: TrustCheck) -> GlossaryEntry:
    return GlossaryEntry(
        id,
        "trust check",
        check.meaning,
        (
            *titled("What it affects", check.affects),
            *titled("What to do", check.remedy),
            *titled("What can still be compared", check.comparable),
            *titled(
                "Related", *(f"A {_CAUSE[subject]} has the same name." for subject, of in CAUSES.items() if id in of)
            ),
        ),
    )
