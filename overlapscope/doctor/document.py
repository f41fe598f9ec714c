"""The document of a diagnosis."""

from __future__ import annotations

from typing import Final

from overlapscope.base.words import listed
from overlapscope.doctor.result import Diagnosis, Status
from overlapscope.documents.model import Block, Document, Heading, Items, Text, with_code
from overlapscope.documents.table import Cell, Table, Tone, prose, rows, words

_TONES: Final[dict[Status, Tone]] = {"ok": "good", "missing": "fair", "broken": "poor"}


def document(diagnosis: Diagnosis) -> Document:
    """Return the outcome, the versions, a row for each part, and what to do."""
    versions = diagnosis.versions
    facts = (
        ("overlapscope", f"{diagnosis.tool.version} in {diagnosis.location}"),
        ("Python", versions.python),
        ("system", versions.system),
        ("PyTorch", versions.torch or "none"),
        ("CUDA of PyTorch", versions.cuda),
        ("ROCm of PyTorch", versions.rocm),
        ("GPU driver", versions.driver),
    )
    checks = ((check.id, Cell(check.status, tone=_TONES[check.status]), check.detail) for check in diagnosis.checks)
    blocks: list[Block] = [
        Heading("overlapscope doctor", 1),
        Text(_outcome(diagnosis), tone=_TONES["broken" if diagnosis.having("broken") else "ok"]),
        Table("Versions", (words("what"), prose("version")), rows((name, text) for name, text in facts if text)),
        Table("Parts", (words("part"), words("status"), prose("detail")), rows(checks)),
    ]
    remedies = tuple(with_code(f"{check.id}: {check.remedy}") for check in diagnosis.checks if check.remedy)
    if remedies:
        blocks += [Heading("What to do"), Items(remedies)]
    return Document("overlapscope doctor", tuple(blocks))


def _outcome(diagnosis: Diagnosis) -> str:
    broken, missing = diagnosis.having("broken"), diagnosis.having("missing")
    sentences = [f"Broken: {listed(broken)}." if broken else "Nothing is broken."]
    if missing:
        sentences.append(f"Missing: {listed(missing)}.")
    if not broken:
        sentences.append("Traces can be read, compared and checked.")
    return " ".join(sentences)
