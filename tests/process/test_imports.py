"""Tests of which modules commands load, each in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from overlapscope.laboratory import catalog, store
from tests.support.helpers import TRACES
from tests.unit.test_laboratory_report import made_results

PIPELINE = str(TRACES / "pipeline_1stream.json.gz")
HEAVY = ("numpy", "pandas", "msgspec", "torch")


def loaded_by(code: str) -> set[str]:
    """Return the names of all modules that are loaded once the code has run."""
    shown = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], HEAVY),
        (["whatif", "--help"], HEAVY),
        (["query", "--help"], (*HEAVY, "duckdb", "pyarrow")),
        (["skill"], ["pandas", "dash", "plotly", "torch", "duckdb", "pyarrow"]),
        (["analyze", PIPELINE], ["pandas", "dash", "plotly", "torch", "overlapscope.plugins.jax.file"]),
        (["check", PIPELINE], ["pandas", "dash", "plotly", "torch"]),
    ],
)
def test_a_command_loads_nothing_heavy_that_it_does_not_need(arguments: list[str], heavy: list[str]) -> None:
    assert not loaded_by(f"from overlapscope.commands import main; main({arguments!r})") & set(heavy)


def test_reading_results_needs_no_torch(tmp_path: Path) -> None:
    store.write(made_results(), tmp_path)
    arguments = ["scenarios", "report", str(tmp_path)]
    assert "torch" not in loaded_by(f"from overlapscope.commands import main; main({arguments!r})")


def test_importing_the_reader_imports_neither_pandas_nor_rich() -> None:
    assert not loaded_by("import overlapscope.reading.kineto") & {"pandas", "rich"}


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
