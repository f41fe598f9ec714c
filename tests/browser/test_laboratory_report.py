"""The laboratory's report in a browser."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from overlapscope.commands import main
from overlapscope.laboratory import store
from tests.unit.test_laboratory_report import made_results


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_html_report_draws_itself_in_a_browser(tmp_path: Path) -> None:
    store.write(made_results(), tmp_path)
    assert main(["scenarios", "report", str(tmp_path)]) == 0
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run([*command, (tmp_path / "report.html").as_uri()], capture_output=True, text=True, check=True)
    assert done.stdout.count('class="main-svg"') >= 2
    assert "one_stream" in done.stdout
