"""The document of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overlapscope.base.words import clean, clean_lines, listed
from overlapscope.contracts.compare import ADVICE, Promise
from overlapscope.documents.model import Block, Code, Document, Items, Section, Text, detail, with_code
from overlapscope.documents.table import Cell, Table, Tone, table_of, words
from overlapscope.plugins.ci.bisect.judge import names
from overlapscope.plugins.ci.bisect.result import BisectCandidate, Bisection, JudgedCandidate

_TONES: dict[str, Tone] = {"good": "good", "bad": "poor", "skipped": "fair"}


def document(found: Bisection) -> Document:
    """Return the result as a page."""
    return Document("overlapscope bisect", tuple(_blocks(found)))


def _blocks(found: Bisection) -> Iterator[Block]:
    bad = _name(found.bad)
    does = f"loses what {bad} loses" if found.by == "order" else f"has steps as long as those of {bad}"
    if found.first is not None:
        text = f"is the first that {does}" if found.first != found.bad else "itself is the first that is bad"
        yield Text(f"{_name(found.first)} {text}.", "poor", strong=True)
        about = (found.first.subject, found.first.author, found.first.date)
        if any(about):
            yield Text(", ".join(clean(part, 200) for part in about if part))
    else:
        yield Text(f"One of these {len(found.possible)} is the first that {does}.", "fair", strong=True)
        skipped = {each.candidate: each.reason for each in found.judged if each.verdict == "skipped"}
        yield Items(tuple(_candidate_words(each, skipped.get(each, "")) for each in found.possible), few=10)
    for promise in found.lost:
        yield _loss(promise)
    if found.change:
        yield Code(clean_lines(found.change), title="What it changed", language="diff")
    if found.later:
        yield Text(f"{bad} also loses this, which a later one lost: {clean(names(found.later), 400)}.")
    counts = [sum(each.verdict == verdict for each in found.judged) for verdict in _TONES]
    judged = listed(f"{count} {verdict}" for count, verdict in zip(counts, _TONES, strict=True) if count)
    yield Text(f"Judged: {judged}.", "muted")
    if found.commands:
        yield Code("\n".join(map(clean, found.commands)), title="See it", language="sh")
    yield from detail("all verdicts", [_verdicts(found.judged)])


def _name(candidate: BisectCandidate) -> str:
    return clean(candidate.short)


def _candidate_words(candidate: BisectCandidate, reason: str) -> str:
    about = clean(candidate.subject, 80)
    return f"{_name(candidate)}{f' {about}' if about else ''}{f': {clean(reason, 200)}' if reason else ''}"


def _loss(promise: Promise) -> Section:
    lines = [Text(promise.message)]
    if promise.line:
        lines.append(Text(f"at {promise.line}"))
    lines.append(Text(with_code(ADVICE[promise.part])))
    return Section(tuple(lines), f"lost: {promise.name}", "panel", "poor")


def _verdicts(judged: Sequence[JudgedCandidate]) -> Table:
    return table_of(
        judged,
        (words("verdict on", heads=True), lambda each: Cell(_name(each.candidate))),
        (words("subject", flexible=True), lambda each: Cell(clean(each.candidate.subject, 60))),
        (words("verdict"), lambda each: Cell(each.verdict, tone=_TONES[each.verdict])),
        (words("because", flexible=True), lambda each: Cell(clean(each.reason, 300))),
        title="Verdicts",
    )
