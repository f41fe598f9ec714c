"""The page of public programs says what was measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.public_programs import KEPT, TRIED, write_page

PAGE = Path("docs/evaluation/public-programs.md")


def test_the_page_follows_from_the_measurements(tmp_path: Path) -> None:
    write_page(tmp_path / PAGE.name, KEPT, TRIED)
    written = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert written == {name: PAGE.with_name(name).read_text(encoding="utf-8") for name in written}
