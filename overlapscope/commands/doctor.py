"""`overlapscope doctor`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from overlapscope.base.words import listed
from overlapscope.commands import DONE
from overlapscope.commands._options import add_format, add_output
from overlapscope.commands._output import check_output, present
from overlapscope.documents.model import Block, Document, Heading, Items, Text, with_code
from overlapscope.documents.table import Cell, Table, Tone, prose, rows, words

if TYPE_CHECKING:
    from overlapscope.doctor.examine import Diagnosis, Status

BROKEN = 1
"""Exit code if a part is installed and does not work."""


class DoctorCommand:
    """Examine this installation for missing and broken parts: versions, GPU,
    whether the profiler may record it, extras with the line that installs
    them, cache, browser.

    With PyTorch and a GPU, a few operations are run and recorded. The exit
    code is 1 if a part is broken; missing parts do not count.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_format(parser, ("text", "json", "markdown"))
        add_output(parser)

    def run(self, args: argparse.Namespace) -> int:
        check_output(args.output, force=args.force)
        from overlapscope.doctor.examine import examine

        diagnosis = examine()
        present(diagnosis, lambda: document(diagnosis), args)
        return BROKEN if diagnosis.having("broken") else DONE


# -- The document ----------------------------------------------------------------------------------

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
