"""The pytest plugin: every outcome of a marked test, wrong markers, options, xdist; and `assert_overlap`.

A recording made here has no GPU in it. Where a test is to be judged, `REPLAYS` puts the recording of a GPU in its
place once it has been made; all else is as anyone has it. `test_pytest_plugin_gpu.py` does without that.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.commands import main
from overlapscope.errors import ConfigError, UnreadableTrace, UsageError
from overlapscope.pytest_plugin import _file_name, assert_overlap, overlap
from overlapscope.report import model as reports
from tests.support import forked
from tests.support.helpers import TRACES
from tests.support.pytest_runs import OPTIONS, PLUGIN, output

ROOT = Path(__file__).parents[2]
OURS = {
    "overlapscope",
    "overlapscope.base",
    "overlapscope.base.registry",
    "overlapscope.base.shown",
    "overlapscope.errors",
    "overlapscope.version",
    PLUGIN,
}
"""The modules of ours that a run of pytest loads for nothing but the plugin."""
PREFETCHING = TRACES / "recorder" / "overlapscope.trace.json.gz"
PAGEABLE = TRACES / "laboratory" / "copy_matrix" / "streamed0_pinned0.trace.json.gz"

REPLAYS = f"""
import shutil
import pytest
from {PLUGIN} import OverlapProfile

STORED = {{"prefetching": {str(PREFETCHING)!r}, "pageable": {str(PAGEABLE)!r}}}

class Replays(OverlapProfile):
    def __exit__(self, *error):
        super().__exit__(*error)
        shutil.copy(STORED[self.stored.pop(0)], self.path)

@pytest.fixture
def overlap_profile(request, tmp_path):
    profile = Replays(request.node, tmp_path / "loader")
    marker = request.node.get_closest_marker("replays")
    profile.stored = list(marker.args) if marker else [request.node.name]
    return profile

def pytest_configure(config):
    config.addinivalue_line("markers", "replays(*names): the stored recordings that take the place of those made")
"""


@pytest.fixture(scope="module", autouse=True)
def everything_is_loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A run inside a test forgets the modules that it was the first to load, and numpy cannot be loaded again."""
    assert_overlap(PREFETCHING, min_efficiency="80%")
    with pytest.raises(AssertionError):
        assert_overlap(PAGEABLE)
    if importlib.util.find_spec("torch") is not None:
        with ov.record(tmp_path_factory.mktemp("once") / "x.trace.json.gz"):
            pass


@pytest.fixture(autouse=True)
def not_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where these are set pytest prints failures twice, the second time in its summary."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def replays(pytester: pytest.Pytester) -> None:
    """Recordings are replaced by stored ones."""
    pytest.importorskip("torch", reason="records with torch")
    pytester.makeconftest(REPLAYS)


def one_test(
    marker: str, body: str = "with overlap_profile as recording: recording.step()", name: str = "pageable"
) -> str:
    """A module with one marked test, for which a stored recording is replayed."""
    return f"""
import pytest

@pytest.mark.overlap({marker})
@pytest.mark.replays({name!r})
def test(overlap_profile):
    {body}
"""


@pytest.mark.usefixtures("replays")
class TestOutcome:
    def test_a_budget_that_holds_passes_and_says_by_how_much_when_asked(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            one_test("min_efficiency='80%', max_exposed_copy='3 ms', forbid=['pageable-copy']", name="prefetching")
        )
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(passed=1)
        assert "efficiency" not in output(result)
        result = pytester.runpytest(*OPTIONS, "-rP")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["*efficiency_pct*9?.*%*"])

    def test_a_broken_budget_is_the_failure_of_the_test_itself_with_the_text_of_check(
        self, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytester.makepyfile(one_test("min_efficiency='80%', max_exposed_copy='3 ms', forbid=['pageable-copy']"))
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(failed=1)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        printed = output(result)
        found = re.search(r"overlapscope dashboard (\S+)", printed)
        assert found is not None
        path = Path(found[1])
        assert path.read_bytes() == PAGEABLE.read_bytes()
        capsys.readouterr()
        (pytester.path / "overlapscope.toml").touch()  # So that none further up is found.
        budgets = ("--budget", "efficiency_pct >= 80%", "--budget", "exposed_copy_time <= 3 ms")
        assert main(["check", str(path), *budgets, "--forbid", "pageable-copy", "-v"]) == 1
        explained = capsys.readouterr().out
        assert "pageable" in explained
        assert " ".join(explained.split()) in " ".join(printed.split())
        assert "Traceback" not in printed and "pytest_plugin.py" not in printed

    def test_without_limits_the_rules_are_forbidden_that_check_forbids(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(one_test(""))
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*forbid pageable-copy*"])
        pytester.makepyfile(one_test("", name="prefetching"))
        pytester.runpytest(*OPTIONS).assert_outcomes(passed=1)

    def test_what_cannot_be_told_fails_unless_it_may_be_missing(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(one_test("max_exposed_comm='1 ms'", name="prefetching"))
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*exposed_comm_time is unknown*"])
        pytester.makepyfile(one_test("max_exposed_comm='1 ms', allow_missing=True", name="prefetching"))
        pytester.runpytest(*OPTIONS).assert_outcomes(passed=1)

    def test_too_many_steps_skipped_is_told(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(one_test("max_idle='100%', skip_steps=99", name="prefetching"))
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*idle_pct is unknown*skipped*"])

    def test_a_range_and_the_window_can_be_judged(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(one_test("max_idle='0.001%', scope='window'"))
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*window*idle_pct <= 0.001%*"])
        pytester.makepyfile(one_test("max_idle='0.001%', range='nowhere*'"))
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*unknown*nowhere*"])

    def test_the_tests_own_failure_comes_first(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            one_test("min_efficiency='80%'", "with overlap_profile: raise ValueError('the loader is empty')")
        )
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["E*ValueError: the loader is empty"])
        assert "efficiency_pct" not in "\n".join(line for line in result.outlines if "mark.overlap" not in line)

    def test_an_expected_failure_is_one(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            one_test("min_efficiency='80%'").replace(
                "import pytest\n", "import pytest\n@pytest.mark.xfail(strict=True)\n"
            )
        )
        pytester.runpytest(*OPTIONS).assert_outcomes(xfailed=1)

    def test_a_marked_test_that_recorded_nothing_fails_and_says_so(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            """
            import pytest

            pytestmark = pytest.mark.overlap(min_efficiency="80%")

            def test_never_entered(overlap_profile): pass

            def test_without_the_fixture(): pass
            """
        )
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(failed=2)
        assert output(result).count("nothing was recorded: take the fixture overlap_profile") >= 2

    def test_each_block_of_a_test_is_judged_by_itself(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            """
            import pytest

            pytestmark = pytest.mark.overlap(min_efficiency="80%")

            def record_twice(profile):
                with profile as first: first.step()
                with profile as second: second.step()
                assert first.path != second.path == profile.path

            @pytest.mark.replays("prefetching", "pageable")
            def test_the_second_is_bad(overlap_profile): record_twice(overlap_profile)

            @pytest.mark.replays("prefetching", "prefetching")
            def test_both_are_good(overlap_profile): record_twice(overlap_profile)
            """
        )
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(passed=1, failed=1)
        result.stdout.fnmatch_lines(
            ["*overlapscope dashboard *loader.trace.json.gz", "*overlapscope dashboard *loader-2.trace.json.gz"]
        )

    def test_one_block_inside_another_is_refused(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            """
            import pytest

            @pytest.mark.replays("prefetching")
            @pytest.mark.overlap(min_efficiency="80%")
            def test(overlap_profile):
                with overlap_profile:
                    with pytest.raises(Exception, match="end that recording first"), overlap_profile:
                        pass
            """
        )
        pytester.runpytest(*OPTIONS).assert_outcomes(passed=1)

    def test_without_a_marker_it_just_records(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            """
            import pytest
            from overlapscope.errors import UsageError
            from overlapscope.pytest_plugin import assert_overlap

            @pytest.mark.replays("pageable")
            def test(overlap_profile):
                with pytest.raises(UsageError, match="nothing was recorded"):
                    overlap_profile.path
                with overlap_profile as recording:
                    recording.step()
                assert recording.path == overlap_profile.path
                assert overlap_profile.path.is_file()
                assert overlap_profile.report.devices[0].overlap.efficiency_pct == 0
                assert overlap_profile.report is overlap_profile.report
                with pytest.raises(AssertionError, match="efficiency_pct"):
                    assert_overlap(overlap_profile.path, min_efficiency="80%")
            """
        )
        pytester.runpytest(*OPTIONS).assert_outcomes(passed=1)

    def test_a_recording_that_a_fixture_keeps_open_is_judged_too(self, pytester: pytest.Pytester) -> None:
        # Its file is still this machine's when it is judged, without a GPU in it.
        pytester.makepyfile(
            """
            import pytest

            @pytest.fixture(autouse=True)
            def recorded(overlap_profile):
                with overlap_profile as recording:
                    yield recording

            @pytest.mark.replays("pageable")
            @pytest.mark.overlap(max_idle="1 ms")
            def test(recorded):
                assert not recorded.finished
            """
        )
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*idle_time is unknown*"])

    def test_test_cases_of_unittest_are_judged_too(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            """
            import unittest
            import pytest

            @pytest.mark.overlap(min_efficiency="80%")
            class TestLoader(unittest.TestCase):
                @pytest.fixture(autouse=True)
                def take(self, overlap_profile):
                    self.overlap_profile = overlap_profile

                @pytest.mark.replays("prefetching")
                def test_good(self):
                    with self.overlap_profile: pass

                @pytest.mark.replays("pageable")
                def test_bad(self):
                    with self.overlap_profile: pass

                @pytest.mark.replays("pageable")
                def test_wrong(self):
                    with self.overlap_profile: pass
                    self.assertEqual("its own", "failure")

                def test_left_out(self):
                    self.skipTest("no data")
            """
        )
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(passed=1, failed=2, skipped=1)
        result.stdout.fnmatch_lines(["*efficiency_pct*", "*AssertionError: 'its own' != 'failure'*"])
        assert output(result).count("overlapscope dashboard") == 1

    def test_under_xdist_each_worker_records_into_files_of_its_own(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            """
            import pytest

            @pytest.mark.parametrize("number", range(2))
            @pytest.mark.overlap(min_efficiency="80%")
            @pytest.mark.replays("pageable")
            def test_bad(overlap_profile, number):
                with overlap_profile: pass

            @pytest.mark.overlap(min_efficiency="80%")
            @pytest.mark.replays("prefetching")
            def test_good(overlap_profile):
                with overlap_profile: pass
            """
        )
        result = pytester.runpytest_subprocess(*OPTIONS, "-n", "2")
        result.assert_outcomes(passed=1, failed=2)
        found = re.findall(r"overlapscope dashboard (\S+)", output(result))
        assert len(set(found)) == 2
        assert all(Path(path).is_file() for path in found)


@pytest.mark.usefixtures("replays")
class TestMarkers:
    def test_the_nearer_one_holds_for_each_argument(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            """
            import pytest

            pytestmark = [
                pytest.mark.replays("prefetching"),
                pytest.mark.overlap(min_efficiency="99.9%", max_idle="0.001%"),
            ]

            def record(overlap_profile):
                with overlap_profile: pass

            @pytest.mark.overlap(max_idle=None)
            class TestThere:
                def test_module_and_class(self, overlap_profile):
                    record(overlap_profile)

                @pytest.mark.overlap(min_efficiency="10%")
                def test_all_three(self, overlap_profile):
                    record(overlap_profile)

            @pytest.mark.overlap(max_idle="0.002%", min_efficiency=20)
            @pytest.mark.overlap(max_idle="100%")
            def test_module_and_two_of_its_own(overlap_profile):
                record(overlap_profile)
            """
        )
        result = pytester.runpytest(*OPTIONS, "-rfP")
        result.assert_outcomes(failed=1, passed=2)
        first, all_three, own = output(result).split("overlapscope dashboard")[:3]
        assert "efficiency_pct >= 99.9%" in first and "idle" not in first
        assert "efficiency_pct >= 10%" in all_three and "idle_" not in all_three
        assert "efficiency_pct >= 20%" in own and "idle_pct <= 100%" in own

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ("min_eficiency='80%'", "overlap: there is no keyword 'min_eficiency' (did you mean 'min_efficiency'?)"),
            ("'80%'", "overlap: takes keywords only"),
            ("max_step_time='3 parsecs'", "overlap: max_step_time: '3 parsecs' has the unit 'parsecs', and a time"),
            ("max_step_time='3%'", "overlap: max_step_time: '3%' has the unit '%', and a time"),
            ("max_idle=3", "overlap: max_idle: 3 has no unit, and a time"),
            ("min_efficiency=[80]", "overlap: min_efficiency: [80] is not a percentage"),
            ("forbid=['pageable']", "overlap: forbid: there is no rule 'pageable' (did you mean 'pageable-copy'?)"),
            ("forbid='pageable-copy'", "overlap: forbid: is 'pageable-copy', but must be a list of strings"),
            ("forbid=True", "overlap: forbid: is true, but must be a list of strings"),
            ("forbid=('pageable',)", "overlap: forbid: there is no rule 'pageable'"),
            (
                "aggregate='middle', max_idle='3 ms'",
                "overlap: aggregate: is 'middle', but must be median, mean, worst or",
            ),
            ("skip_steps='1'", "overlap: skip_steps: is '1', but must be a whole number, 0 or more"),
            (
                "scope='windows', max_idle='3 ms'",
                "overlap: scope: is 'windows', but must be steps or window (did you mean 'window'?)",
            ),
            ("range='forward'", "overlap: range says where a limit applies, but there is no limit"),
            (
                "range='forward', min_copy_bandwidth='3 GB/s'",
                "copy_bandwidth is known only for steps and for the window",
            ),
        ],
    )
    def test_what_makes_no_sense_is_an_error_of_the_collection(
        self, arguments: str, said: str, pytester: pytest.Pytester
    ) -> None:
        pytester.makepyfile(one_test(arguments))
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(errors=1)
        assert result.ret == pytest.ExitCode.INTERRUPTED
        assert said in output(result)
        assert "test_what_makes_no_sense_is_an_error_of_the_collection.py::test: overlap: " in output(result)
        assert "Traceback" not in output(result)

    def test_one_that_is_given_to_a_parameter_fails_that_test(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            """
            import pytest

            bad, good = (pytest.mark.overlap(**{key: "3 ms"}) for key in ("max_eyedle", "max_idle"))

            @pytest.mark.replays("prefetching")
            @pytest.mark.parametrize("size", [1, pytest.param(2, marks=bad), pytest.param(3, marks=good)])
            def test(overlap_profile, size):
                with overlap_profile: pass
            """
        )
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(passed=2, failed=1)
        result.stdout.fnmatch_lines(["overlap: there is no keyword 'max_eyedle' (did you mean 'max_idle'?)*"])


class TestWithoutAGpu:
    @pytest.fixture(autouse=True)
    def hide_the_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    @pytest.fixture
    def source(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            """
            import pytest

            @pytest.fixture
            def a_model():
                raise RuntimeError("no NVIDIA driver")

            @pytest.mark.overlap(min_efficiency="80%")
            def test_marked(a_model, overlap_profile):
                with overlap_profile: pass

            def test_unmarked(overlap_profile):
                with overlap_profile: pass

            def test_other(): pass
            """
        )

    def run(self, pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
        """Of a process in which torch has not looked for GPUs yet."""
        done = forked.run(["-m", "pytest", *OPTIONS, *options], pytester.path)
        return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), duration=0)

    @pytest.mark.usefixtures("source")
    def test_tests_are_skipped_with_the_reason_before_anything_else(self, pytester: pytest.Pytester) -> None:
        pytest.importorskip("torch")
        result = self.run(pytester, "-rs")
        result.assert_outcomes(passed=1, skipped=2)
        result.stdout.fnmatch_lines(["SKIPPED*: needs a CUDA device, and torch sees none"])

    @pytest.mark.usefixtures("source")
    def test_they_fail_where_a_gpu_is_required(self, pytester: pytest.Pytester) -> None:
        pytest.importorskip("torch")
        result = self.run(pytester, "--overlap-require")
        result.assert_outcomes(passed=1, errors=2)
        result.stdout.fnmatch_lines(["needs a CUDA device, and torch sees none (--overlap-require)"])

    @pytest.mark.usefixtures("source")
    def test_without_torch_too(self, pytester: pytest.Pytester) -> None:
        pytester.makeconftest(
            """
            import sys
            from importlib.machinery import PathFinder

            class WithoutTorch(PathFinder):
                @classmethod
                def find_spec(cls, name, path=None, target=None):
                    return None if name.partition(".")[0] == "torch" else super().find_spec(name, path, target)

            sys.meta_path[:] = [WithoutTorch if finder is PathFinder else finder for finder in sys.meta_path]
            """
        )
        result = pytester.runpytest_subprocess(*OPTIONS, "-rs")
        result.assert_outcomes(passed=1, skipped=2)
        result.stdout.fnmatch_lines(["SKIPPED*: recording needs PyTorch*"])


class TestOptions:
    def test_all_begin_alike(self, pytester: pytest.Pytester) -> None:
        result = pytester.runpytest(*OPTIONS, "--help")
        _, _, rest = output(result).partition("overlap of copies and compute (overlapscope):")
        found = re.findall(r"^  (--[\w-]+)", rest.split("\n\n")[0], re.MULTILINE)
        assert found == ["--overlap-require", "--overlap-dir", "--overlap-stacks"]

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
        found = _file_name(nodeid)
        assert found.startswith(name)
        assert (found == name) == (not name.endswith("-"))
        assert _file_name(nodeid + "_") != found
        assert re.fullmatch(r"[\w.-]{1,150}", found, re.ASCII)


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
        (tmp_path / "report.json").write_bytes(reports.to_json(report))
        return tmp_path / "report.json"

    def test_passes(self, as_what: str, tmp_path: Path) -> None:
        stored = self.given(PREFETCHING, as_what, tmp_path)
        assert_overlap(stored, min_efficiency="80%", max_exposed_copy="3 ms", forbid=["pageable-copy"], skip_steps=1)  # type: ignore[arg-type]

    def test_fails_with_the_explanation(self, as_what: str, tmp_path: Path) -> None:
        stored = self.given(PAGEABLE, as_what, tmp_path)
        with pytest.raises(AssertionError, match=r"(?s)pageable") as failure:
            assert_overlap(stored, max_exposed_copy="3 ms", forbid=["pageable-copy"])  # type: ignore[arg-type]
        assert "exposed_copy_time <= 3 ms" in str(failure.value)


class TestAssertOverlap:
    @pytest.mark.parametrize(
        ("limits", "said"),
        [
            ({"max_step": "3 ms"}, "assert_overlap: there is no keyword 'max_step' (did you mean 'max_step_time'?)"),
            ({"max_step_time": "soon"}, "overlap: max_step_time: 'soon' is not a time"),
        ],
    )
    def test_keywords_that_make_no_sense_are_no_failed_assertion(self, limits: dict[str, str], said: str) -> None:
        with pytest.raises(UsageError, match=re.escape(said)):
            assert_overlap(PREFETCHING, **limits)

    def test_an_error_says_both_units_where_either_would_do(self) -> None:
        with pytest.raises(ConfigError, match=r'write it like "3 ms" or "10%"\.$'):
            overlap(max_idle="3 meters")

    def test_a_share_and_a_time_are_told_apart_by_their_unit(self) -> None:
        names = ("max_exposed_copy", "max_exposed_comm", "max_idle")
        times = overlap(**dict.fromkeys(names, "3 ms"))  # type: ignore[arg-type]
        shares = overlap(**dict.fromkeys(names, "3%"))  # type: ignore[arg-type]
        assert [(one.metric, one.max) for one in times.budgets] == [
            ("exposed_copy_time", 3e6),
            ("exposed_comm_time", 3e6),
            ("idle_time", 3e6),
        ]
        assert [(one.metric, one.max) for one in shares.budgets] == [
            ("exposed_copy_pct", 3),
            ("exposed_comm_pct", 3),
            ("idle_pct", 3),
        ]

    def test_a_file_that_is_no_trace_is_no_failed_assertion(self, tmp_path: Path) -> None:
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
    """What a fresh process prints that runs this code."""
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
