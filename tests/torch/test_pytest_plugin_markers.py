"""The pytest plugin: its markers, those that make no sense, and machines without a GPU.

Stored recordings are replayed, as in `test_pytest_plugin_outcomes`.
"""

from __future__ import annotations

import pytest

from tests.support import forked
from tests.support.pytest_runs import OPTIONS, one_test, output

pytestmark = pytest.mark.usefixtures("everything_is_loaded", "not_in_ci")


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
        first, all_three, by_itself = output(result).split("overlapscope dashboard")[:3]
        assert "efficiency_pct >= 99.9%" in first and "idle" not in first
        assert "efficiency_pct >= 10%" in all_three and "idle_" not in all_three
        assert "efficiency_pct >= 20%" in by_itself and "idle_pct <= 100%" in by_itself

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("min_eficiency='80%'", "overlap: there is no keyword 'min_eficiency' (did you mean 'min_efficiency'?)"),
            ("'80%'", "overlap: takes keywords only"),
            ("max_step_time='3 parsecs'", "overlap: max_step_time: '3 parsecs' has the unit 'parsecs', and a time"),
            ("max_step_time='3%'", "overlap: max_step_time: '3%' has the unit '%', and a time"),
            ("max_idle=3", "overlap: max_idle: 3 has no unit, and a time"),
            ("min_efficiency=[80]", "overlap: min_efficiency: [80] is not a percentage"),
            ("forbid=['pageable']", "overlap: forbid: there is no rule 'pageable' (did you mean 'pageable-memory'?)"),
            ("forbid='pageable-memory'", "overlap: forbid: is 'pageable-memory', but must be a list of strings"),
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
        self, arguments: str, message: str, pytester: pytest.Pytester
    ) -> None:
        pytester.makepyfile(one_test(arguments))
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(errors=1)
        assert result.ret == pytest.ExitCode.INTERRUPTED
        assert message in output(result)
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
        """Return the result in a process in which torch has not looked for GPUs yet."""
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
