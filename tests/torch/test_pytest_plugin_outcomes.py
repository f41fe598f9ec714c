"""The pytest plugin: every outcome of a marked test.

A recording made here has no GPU in it. For judged tests, `REPLAYS` substitutes a recording of a GPU; everything else is
real. `test_pytest_plugin_gpu.py` does without that.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from overlapscope.commands import main
from tests.support.pytest_runs import OPTIONS, PAGEABLE, one_test, output

pytestmark = pytest.mark.usefixtures("everything_is_loaded", "not_in_ci")


@pytest.mark.usefixtures("replays")
class TestOutcome:
    def test_a_budget_that_holds_passes_and_says_by_how_much_when_asked(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(
            one_test("min_efficiency='80%', max_exposed_copy='3 ms', forbid=['pageable-memory']", name="prefetching")
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
        pytester.makepyfile(one_test("min_efficiency='80%', max_exposed_copy='3 ms', forbid=['pageable-memory']"))
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(failed=1)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        printed = output(result)
        match = re.search(r"overlapscope dashboard (\S+)", printed)
        assert match is not None
        path = Path(match[1])
        assert path.read_bytes() == PAGEABLE.read_bytes()
        capsys.readouterr()
        budgets = ("--budget", "efficiency_pct >= 80%", "--budget", "exposed_copy_time <= 3 ms")
        assert main(["check", str(path), *budgets, "--forbid", "pageable-memory", "-v"]) == 1
        explained = capsys.readouterr().out
        assert "pageable" in explained
        assert " ".join(explained.split()) in " ".join(printed.split())
        assert "Traceback" not in printed and "pytest_plugin.py" not in printed

    def test_without_limits_the_rules_are_forbidden_that_check_forbids(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(one_test(""))
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*forbid pageable-memory*"])
        pytester.makepyfile(one_test("", name="prefetching"))
        pytester.runpytest(*OPTIONS).assert_outcomes(passed=1)

    def test_what_is_unknown_fails_unless_it_may_be_missing(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile(one_test("max_exposed_comm='1 ms'", name="prefetching"))
        result = pytester.runpytest(*OPTIONS)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*exposed_comm_time is unknown*"])
        pytester.makepyfile(one_test("max_exposed_comm='1 ms', allow_missing=True", name="prefetching"))
        pytester.runpytest(*OPTIONS).assert_outcomes(passed=1)

    def test_too_many_steps_skipped_is_reported(self, pytester: pytest.Pytester) -> None:
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
        matches = re.findall(r"overlapscope dashboard (\S+)", output(result))
        assert len(set(matches)) == 2
        assert all(Path(path).is_file() for path in matches)
