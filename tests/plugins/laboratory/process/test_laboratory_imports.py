"""Tests of which modules the laboratory's commands load, each in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from overlapscope.plugins.laboratory import catalog
from overlapscope.plugins.laboratory.results import write_results
from tests.plugins.laboratory.unit.test_laboratory_report import made_results
from tests.process.test_imports import loaded_by


def test_reading_results_needs_no_torch(tmp_path: Path) -> None:
    write_results(made_results(), tmp_path)
    arguments = ["scenarios", "report", str(tmp_path)]
    assert "torch" not in loaded_by(f"from overlapscope.commands import main; main({arguments!r})")


def test_experiments_are_listed_where_torch_is_not_installed() -> None:
    code = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "tensordict"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from overlapscope.commands import main
code = main(["scenarios", "list"])
assert "torch" not in sys.modules
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in catalog.shipped())
