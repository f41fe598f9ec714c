"""What a diagnosis consists of when it is shown."""

from __future__ import annotations

from typing import Final

from overlapscope.base.words import listed, plural
from overlapscope.doctor.result import Diagnosis, Status
from overlapscope.documents.model import Block, Document, Heading, Items, Text, with_code
from overlapscope.documents.table import Cell, Column, Table, Tone, rows, words

_TONES: Final[dict[Status, Tone]] = {"ok": "good", "missing": "fair", "broken": "poor"}


def document(found: Diagnosis) -> Document:
    """The outcome, the versions, a row for each part, and what to do."""
    versions = found.versions
    told = [("overlapscope", f"{found.tool.version} in {found.location}"), ("Python", versions.python)]
    told += [("system", versions.system), ("PyTorch", versions.torch or "none")]
    told += [(name, version) for name, version in _built_for(found) if version]
    checks = ((check.id, Cell(check.status, tone=_TONES[check.status]), check.detail) for check in found.checks)
    prose = Column("detail", number=False, flexible=True, prose=True)
    blocks: list[Block] = [
        Heading("overlapscope doctor", 1),
        Text(_outcome(found), tone=_TONES["broken" if found.having("broken") else "ok"]),
        Table("Versions", (words("what"), words("version", flexible=True)), rows(told)),
        Table("Parts", (words("part"), words("status"), prose), rows(checks)),
    ]
    remedies = tuple(with_code(f"{check.id}: {check.remedy}") for check in found.checks if check.remedy)
    if remedies:
        blocks += [Heading("What to do"), Items(remedies)]
    return Document("overlapscope doctor", tuple(blocks))


def _built_for(found: Diagnosis) -> list[tuple[str, str | None]]:
    versions = found.versions
    return [("CUDA of PyTorch", versions.cuda), ("ROCm of PyTorch", versions.rocm), ("GPU driver", versions.driver)]


def _outcome(found: Diagnosis) -> str:
    broken, missing = found.having("broken"), found.having("missing")
    sentences = [f"{plural(len(broken), 'part')} broken: {listed(broken)}." if broken else "Nothing is broken."]
    if missing:
        sentences.append(f"Missing here: {listed(missing)}.")
    if not broken:
        sentences.append("Traces can be read, compared and checked.")
    return " ".join(sentences)
