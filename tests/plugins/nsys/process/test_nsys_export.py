"""Reports of Nsight Systems that it has not exported yet: `nsys` is called where it is on the PATH."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.commands import main
from overlapscope.errors import UnreadableTrace
from tests.support.helpers import TRACES

NSYS = """#!/bin/sh
for argument in "$@"; do
    case "$argument" in
        --output=*) target="${argument#--output=}" ;;
        --type=sqlite|--force-overwrite=true|--quiet=true|export) ;;
        -*) echo "unknown option $argument"; exit 1 ;;
        *) report="$argument" ;;
    esac
done
if grep -q broken "$report"; then echo "Importer error: the report is broken."; exit 1; fi
cp "$report" "$target"
"""
"""Takes what `nsys export` takes, and finds the database ready in the report."""


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an `nsys` on the PATH."""
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(NSYS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def report(folder: Path) -> Path:
    path = folder / "one copy.nsys-rep"
    path.write_bytes(lzma.decompress((TRACES / "nsys" / "one_copy.sqlite.xz").read_bytes()))
    return path


@pytest.mark.usefixtures("nsys")
def test_a_report_is_exported_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = report(tmp_path)
    assert main(["analyze", str(path)]) == 0
    head = " ".join(capsys.readouterr().out.split())
    assert head.startswith(
        "one copy.nsys-rep, NVIDIA GeForce RTX 3080: In all that was recorded, 22.5 ms, the GPU is idle"
    )
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bin", "one copy.nsys-rep"]


@pytest.mark.usefixtures("nsys")
def test_what_nsys_says_of_a_report_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "report.nsys-rep"
    path.write_text("broken")
    with pytest.raises(UnreadableTrace, match=r"`nsys export` failed \(Importer error: the report is broken\)"):
        ov.load(path)


def test_without_nsys_a_sentence_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnreadableTrace, match=r"run `nsys export --type sqlite one copy\.nsys-rep` where it is"):
        ov.load(report(tmp_path))
