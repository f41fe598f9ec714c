"""Edits of a program that make the changes which were tried on it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from overlapscope.errors import UsageError
from overlapscope.trials.edit import edits
from overlapscope.trials.protocol import Facts, Loader, Setting, Site, Uploads
from overlapscope.trials.write import original, undo, write

WORKERS, PIN, NON_BLOCKING = Setting("workers", "6"), Setting("pin"), Setting("non-blocking")
PREFETCH, COMPILE, FUSED = Setting("prefetch"), Setting("graph", "compile"), Setting("fused")


class Program:
    """A script, and what its lines do."""

    def __init__(self, folder: Path, source: str) -> None:
        self.path = folder / "train.py"
        self.path.write_text(source, encoding="utf-8", newline="")

    def site(self, text: str, library: str = "") -> Site:
        """The line that begins with this, or has it at first."""
        lines = self.path.read_text(encoding="utf-8").split("\n")
        return Site(str(self.path), next(i for i, line in enumerate(lines, 1) if text in line), library)

    def loader(self, text: str = "DataLoader(", library: str = "", loop: str = "") -> Facts:
        loop_site = self.site(loop) if loop else None
        one = Loader(
            site=self.site(text, library),
            loop=loop_site,
            dataset="Texts",
            iterable=False,
            num_workers=0,
            pin_memory=False,
            on_gpu=False,
            batches=9,
        )
        return Facts(cuda=True, cpus=8, loaders=(one,))

    def edited(self, facts: Facts, *settings: Setting) -> tuple[str, str]:
        """The changed lines of the program, and the advice."""
        found = edits(facts, settings, self.path.parent)
        before = self.path.read_text(encoding="utf-8").splitlines()
        after = found.files[0].after.decode().splitlines() if found.files else before
        return "\n".join(line.strip() for line in after if line not in before), "\n".join(found.advice)


def uploads(site: Site, method: str = "to", *, pinned: bool = False, from_loader: bool = False) -> Facts:
    one = Uploads(
        site=site,
        method=method,  # type: ignore[arg-type]
        pinned=pinned,
        non_blocking=False,
        count=9,
        bytes=9,
        from_loader=from_loader,
    )
    return Facts(cuda=True, cpus=8, uploads=(one,))


@pytest.mark.parametrize(
    "source",
    [
        "from torch.utils.data import DataLoader\nloader = DataLoader(texts, 16)\n",
        "import torch\nloader = torch.utils.data.DataLoader(texts, 16)\n",
        "import torch.utils.data as td\nloader = td.DataLoader(texts, 16)\n",
        "from torch.utils import data\nloader = data.DataLoader(texts, 16)\n",
        "from torch.utils.data import DataLoader as DL\nloader = DL(texts, 16)  # DataLoader(\n",
        "from torch.utils.data import *\nloader = DataLoader(texts, 16)\n",
    ],
)
def test_a_data_loader_gets_workers_and_pinned_memory_however_it_is_imported(tmp_path: Path, source: str) -> None:
    program = Program(tmp_path, source)
    line, advice = program.edited(program.loader("loader = "), WORKERS, PIN)
    assert "(texts, 16, num_workers=6, persistent_workers=True, pin_memory=True)" in line
    assert not advice


def test_a_written_edit_keeps_the_original_and_its_mode(tmp_path: Path) -> None:
    program = Program(tmp_path, "from torch.utils.data import DataLoader\nloader = DataLoader(texts)\n")
    program.path.chmod(0o750)
    [file] = edits(program.loader(), (WORKERS,), tmp_path).files
    write([file])
    assert program.path.read_bytes() == file.after
    assert original(file).read_bytes() == file.before
    assert {stat.S_IMODE(path.stat().st_mode) for path in (program.path, original(file))} == {0o750}
    with pytest.raises(UsageError, match="has changed since"):
        write([file])
    undo([file])
    assert program.path.read_bytes() == file.before and not original(file).exists()
