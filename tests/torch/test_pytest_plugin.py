"""The pytest plugin: its options, `assert_overlap`, and those who do not use it."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.base.saved import encode
from overlapscope.errors import ConfigError, UnreadableTrace, UsageError
from overlapscope.pytest_plugin import _file_name, assert_overlap, overlap
from tests.support.pytest_runs import OPTIONS, PAGEABLE, PLUGIN, PREFETCHING, output

pytestmark = pytest.mark.usefixtures("everything_is_loaded", "not_in_ci")

ROOT = Path(__file__).parents[2]
OURS = {
    "overlapscope",
    "overlapscope.base",
    "overlapscope.base.registry",
    "overlapscope.errors",
    "overlapscope.version",
    PLUGIN,
}
"""The modules of ours that a run of pytest loads for nothing but the plugin."""


class TestOptions:
    def test_all_begin_alike(self, pytester: pytest.Pytester) -> None:
        result = pytester.runpytest(*OPTIONS, "--help")
        _, _, rest = output(result).partition("overlap of copies and compute (overlapscope):")
        matches = re.findall(r"^  (--[\w-]+)", rest.split("\n\n")[0], re.MULTILINE)
        assert matches == ["--overlap-require", "--overlap-dir", "--overlap-stacks"]

    def test_the_markers_help_is_that_of_its_function(self, pytester: pytest.Pytester) -> None:
        printed = output(pytester.runpytest(*OPTIONS, "--markers"))
        begin = printed.index("@pytest.mark.overlap(*, min_efficiency=None, ")
        shown = printed[begin:].replace("\n", " ")
        for name in inspect.signature(overlap).parameters:
            assert f"{name}=" in shown
        assert " ".join((inspect.getdoc(overlap) or "").split()) in " ".join(shown.split())

    @pytest.mark.parametrize(
        ("nodeid", "name"),
        [
            ("tests/test_loader.py::test_prefetch", "tests-test_loader.py-test_prefetch"),
            ("tests/test_loader.py::TestDeep::test_it", "tests-test_loader.py-TestDeep-test_it"),
            ("test_a.py::test[8-../../x y]", "test_a.py-test-8-..-..-x-y-"),
            ("../test_a.py::test", "test_a.py-test-"),
            ("test_a.py::test_\u00fc\ud800", "test_a.py-test_-"),
            (f"test_a.py::test_{'x' * 300}", f"test_a.py-test_{'x' * 105}-"),
        ],
    )
    def test_a_trace_has_a_name_that_no_other_has_and_that_any_file_system_takes(self, nodeid: str, name: str) -> None:
        file_name = _file_name(nodeid)
        assert file_name.startswith(name)
        assert (file_name == name) == (not name.endswith("-"))
        assert _file_name(nodeid + "_") != file_name
        assert re.fullmatch(r"[\w.-]{1,150}", file_name, re.ASCII)


@pytest.mark.parametrize("as_what", ["path", "text", "trace", "report", "json"])
class TestAStoredTrace:
    def given(self, path: Path, as_what: str, tmp_path: Path) -> object:
        if as_what in ("path", "text"):
            return path if as_what == "path" else str(path)
        trace = ov.load(path)
        if as_what == "trace":
            return trace
        report = ov.analyze(trace)
        if as_what == "report":
            return report
        (tmp_path / "report.json").write_bytes(encode(report))
        return tmp_path / "report.json"

    def test_passes(self, as_what: str, tmp_path: Path) -> None:
        stored = self.given(PREFETCHING, as_what, tmp_path)
        assert_overlap(stored, min_efficiency="80%", max_exposed_copy="3 ms", forbid=["pageable-memory"], skip_steps=1)  # type: ignore[arg-type]

    def test_fails_with_the_explanation(self, as_what: str, tmp_path: Path) -> None:
        stored = self.given(PAGEABLE, as_what, tmp_path)
        with pytest.raises(AssertionError, match=r"(?s)pageable") as failure:
            assert_overlap(stored, max_exposed_copy="3 ms", forbid=["pageable-memory"])  # type: ignore[arg-type]
        assert "exposed_copy_time <= 3 ms" in str(failure.value)


class TestAssertOverlap:
    @pytest.mark.parametrize(
        ("limits", "message"),
        [
            ({"max_step": "3 ms"}, "assert_overlap: there is no keyword 'max_step' (did you mean 'max_step_time'?)"),
            ({"max_step_time": "soon"}, "overlap: max_step_time: 'soon' is not a time"),
        ],
    )
    def test_keywords_that_make_no_sense_are_no_failed_assertion(self, limits: dict[str, str], message: str) -> None:
        with pytest.raises(UsageError, match=re.escape(message)):
            assert_overlap(PREFETCHING, **limits)

    def test_an_error_says_both_units_where_either_would_do(self) -> None:
        with pytest.raises(ConfigError, match=r'write it like "3 ms" or "10%"\.$'):
            overlap(max_idle="3 meters")

    def test_a_share_and_a_time_are_distinguished_by_their_unit(self) -> None:
        names = ("max_exposed_copy", "max_exposed_comm", "max_idle")
        times = overlap(**dict.fromkeys(names, "3 ms"))  # type: ignore[arg-type]
        shares = overlap(**dict.fromkeys(names, "3%"))  # type: ignore[arg-type]
        assert [(budget.metric, budget.bound) for budget in times.budgets] == [
            ("exposed_copy_time", 3e6),
            ("exposed_comm_time", 3e6),
            ("idle_time", 3e6),
        ]
        assert [(budget.metric, budget.bound) for budget in shares.budgets] == [
            ("exposed_copy_pct", 3),
            ("exposed_comm_pct", 3),
            ("idle_pct", 3),
        ]

    def test_a_file_that_is_not_a_trace_is_not_a_failed_assertion(self, tmp_path: Path) -> None:
        with pytest.raises(UnreadableTrace):
            assert_overlap(tmp_path / "nothing.json")

    def test_its_own_frames_are_not_shown(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            f"""
            from overlapscope.pytest_plugin import assert_overlap

            def test():
                assert_overlap({str(PAGEABLE)!r}, min_efficiency="80%")
            """
        )
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["E *AssertionError: *", "E *pageable*"])
        assert "pytest_plugin.py:" not in output(result)

    def test_it_needs_neither_torch_nor_a_run_of_pytest(self) -> None:
        code = f"""
            import sys
            from overlapscope.pytest_plugin import assert_overlap
            assert_overlap({str(PREFETCHING)!r}, min_efficiency="80%")
            try:
                assert_overlap({str(PAGEABLE)!r}, min_efficiency="80%")
            except AssertionError as error:
                print("failed:", error)
            print("torch" in sys.modules)
        """
        printed = python(code)
        assert "failed:" in printed and "efficiency_pct >= 80%" in printed
        assert printed.endswith("False\n")


class TestWhoeverDoesNotUseIt:
    def test_pays_next_to_nothing_for_the_import(self) -> None:
        code = """
            import sys, pytest
            before = set(sys.modules)
            import overlapscope.pytest_plugin
            print(sorted(set(sys.modules) - before))
        """
        loaded = ast.literal_eval(python(code))
        assert {name for name in loaded if name.startswith("overlapscope")} <= OURS
        assert set(loaded) <= {*sys.stdlib_module_names, *OURS}

    def test_sees_no_change_and_loads_nothing(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            f"""
            import sys
            import pytest

            @pytest.fixture
            def other(tmp_path): return tmp_path

            @pytest.mark.parametrize("number", range(2))
            def test(other, number, request):
                heavy = {{"numpy", "torch", "pandas", "msgspec", "rich"}}
                assert not heavy & set(sys.modules)
                assert {{name for name in sys.modules if name.partition(".")[0] == "overlapscope"}} <= {OURS!r}
                assert "overlap_profile" not in request.fixturenames
            """
        )
        result = pytester.runpytest_subprocess(*OPTIONS, "-rA")
        result.assert_outcomes(passed=2)
        assert "overlap" not in output(result).split("test session starts")[1].replace("overlapscope-", "")


def python(code: str) -> str:
    """Return the output of a fresh process that runs this code."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
