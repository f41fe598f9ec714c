"""`make quick`: it runs the tests nearest to a change, goes on with the others, and then has nothing left to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.quick import Reach, Stale, affordable
from tests.support.outcomes import ROOT


@pytest.fixture(scope="module")
def reach() -> Reach:
    return Reach()


def test_nearest_are_tests_that_import_what_changed(reach: Reach) -> None:
    distances = reach.distances(["overlapscope/dashboard/security.py"])
    assert distances["tests/process/test_dashboard_security.py"] == 1
    assert distances["tests/core/rules/test_rules.py"] > 1


def test_a_rule_that_only_its_registry_names_reaches_the_tests_of_rules(reach: Reach) -> None:
    assert reach.distances(["overlapscope/rules/host_work.py"])["tests/core/rules/test_rules.py"] == 2


def test_a_test_that_starts_a_subcommand_reaches_it(reach: Reach) -> None:
    assert reach.distances(["overlapscope/commands/analyze.py"])["tests/core/report/test_golden.py"] == 1


def test_a_changed_test_is_nearest_and_a_conftest_reaches_its_room(reach: Reach) -> None:
    assert reach.distances(["tests/core/rules/test_rules.py"])["tests/core/rules/test_rules.py"] == 0
    reached = reach.distances(["tests/torch/conftest.py"])
    assert reached["tests/torch/test_windows.py"] == 1 and "tests/core/rules/test_rules.py" not in reached


def test_other_files_reach_the_tests_that_name_them_or_their_directory(reach: Reach) -> None:
    assert reach.distances(["README.md"])["tests/core/project/test_docs.py"] == 1
    assert reach.distances(["docs/guides/ci.md"])["tests/core/project/test_docs.py"] <= 2
    assert reach.distances(["tests/golden/ddp.md"])["tests/core/report/test_golden.py"] == 2
    assert reach.distances(["overlapscope/dashboard/assets/address.js"])["tests/process/test_dashboard.py"] <= 2


def test_as_many_as_fit_run_and_at_least_the_nearest() -> None:
    stale = [Stale(0, 50, "a"), Stale(1, 5, "b"), Stale(1, 30, "c"), Stale(2, 10, "d")]
    assert affordable(stale, 20) == ["a"]
    assert affordable(stale, 70) == ["a", "b", "d"]
    assert affordable([], 20) == []


class Checkout:
    """A repository with `tests.quick` and three modules: each has a test, and `second` imports `first`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        for copied in ("tests/quick.py", "tests/support/outcomes.py", "tests/support/scheduler.py"):
            self.write(copied, (ROOT / copied).read_text())
        for package in ("benchmarks", "overlapscope", "tests", "tests/support", "tests/core"):
            self.write(f"{package}/__init__.py", "")
        self.write("overlapscope/commands/__init__.py", "def commands(): return {}\nplace_of = None")
        self.write(".gitignore", ".pytest_cache\n__pycache__\n")
        for module, text in {"first": "A = 1", "second": "from overlapscope.first import A", "third": "A = 1"}.items():
            self.write(f"overlapscope/{module}.py", text)
            test = f"from overlapscope.{module} import A\n\ndef test_it():\n    assert A > 0"
            self.write(f"tests/core/test_{module}.py", test)
        for arguments in (["init"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x", "commit", "-m", "x"]):
            subprocess.run(["git", "-C", root, *arguments], check=True, capture_output=True)

    def write(self, path: str, text: str) -> None:
        (self._root / path).parent.mkdir(parents=True, exist_ok=True)
        (self._root / path).write_text(text)

    def quick(self) -> tuple[int, str]:
        """Return the exit code and the output of `python -m tests.quick`."""
        command = [sys.executable, "-m", "tests.quick", "-v", "-p", "no:cacheprovider"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        done = subprocess.run(command, cwd=self._root, env=environment, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.returncode, done.stdout


def test_a_change_is_tested_until_its_tests_have_passed(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    assert checkout.quick() == (0, "No test file can be broken by what has changed since it last passed.\n")
    checkout.write("overlapscope/first.py", "A = 2")
    code, printed = checkout.quick()
    assert code == 0 and "test_first.py::test_it PASSED" in printed and "test_second.py::test_it PASSED" in printed
    assert "test_third.py" not in printed
    assert checkout.quick()[1].startswith("No test file can be broken")
    checkout.write("overlapscope/second.py", "A = 0")
    for _ in range(2):
        code, printed = checkout.quick()
        assert code == 1 and "test_second.py::test_it FAILED" in printed and "test_first.py" not in printed
    checkout.write("overlapscope/second.py", "A = 3")
    assert checkout.quick()[0] == 0
