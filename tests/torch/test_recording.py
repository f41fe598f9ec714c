"""Tests of `overlapscope.record`: the file's contents for different programs, and refused arguments."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import overlapscope as ov
from overlapscope.base.revision import revision
from overlapscope.errors import UsageError
from overlapscope.recorder import trace_file
from overlapscope.recorder.recording import current
from tests.support.recorded import content, names, python, steps, warm_up_steps, work

torch = pytest.importorskip("torch", reason="records with torch")
pytestmark = pytest.mark.usefixtures("nothing_is_left_running")
ROOT = Path(__file__).parents[2]


class TestWhatIsRecorded:
    @pytest.mark.parametrize("name", ["x.json", "x.json.gz", "x.trace.json.gz", "überlapp ß.json.gz"])
    def test_a_program_without_steps_is_recorded_as_a_whole(self, name: str, tmp_path: Path) -> None:
        with ov.record(tmp_path / name) as rec:
            work()
        assert rec.path == tmp_path / name
        assert rec.finished
        assert rec.notes == ()
        assert names(rec.path) == ["work"]
        assert warm_up_steps(rec.path) == 0
        trace = ov.load(rec.path)
        assert trace.damage == type(trace.damage)()
        assert "aten::mm" in {trace.cpu_ops.name(row) for row in range(len(trace.cpu_ops))}
        assert [file.name for file in tmp_path.iterdir()] == [name]

    def test_a_trace_says_when_and_of_what_it_was_recorded(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GITHUB_SHA", "c0ffee")
        monkeypatch.setenv("GITHUB_REF_NAME", "main")
        monkeypatch.setattr(trace_file, "_revision", revision)
        monkeypatch.setattr(sys, "argv", ["/somewhere/train.py"])
        before_ns = time.time_ns()
        with ov.record(path) as rec:
            work()
            rec.step()
        origin = ov.load(path).origin
        assert origin is not None and origin.at_ns is not None
        assert (origin.commit, origin.branch, origin.job) == ("c0ffee", "main", "train.py")
        assert before_ns <= origin.at_ns <= time.time_ns()
        assert not {"host", "hostname"} & content(path)["overlapscope"]["origin"].keys()

    def test_steps_are_numbered_and_the_first_is_warm_up(self, path: Path) -> None:
        with ov.record(path, plain_steps=0) as rec:
            for index in range(4):
                work(f"step {index}")
                rec.step()
            work("after the last step")
        assert steps(path) == [0, 1, 2, 3]
        assert warm_up_steps(path) == 1
        assert "after the last step" in names(path)
        assert rec.notes == ()

    @pytest.mark.parametrize(
        ("wait", "warmup", "active", "made_steps", "recorded", "warm_up"),
        [
            (0, 1, None, 5, [0, 1, 2, 3, 4], 1),
            (0, 0, None, 3, [0, 1, 2], 0),
            (0, 0, 1, 3, [0], 0),
            (0, 2, 2, 9, [0, 1, 2, 3], 2),
            (2, 0, 1, 9, [2], 0),
            (3, 0, 2, 9, [3, 4], 0),
            (3, 2, 2, 9, [3, 4, 5, 6], 2),
            (3, 2, 2, 6, [3, 4, 5], 2),
            (3, 2, None, 9, [3, 4, 5, 6, 7, 8], 2),
            (1, 1, 10, 4, [0, 1, 2, 3], 2),
        ],
    )
    def test_phases(
        self, wait: int, warmup: int, active: int | None, made_steps: int, recorded: list[int], warm_up: int, path: Path
    ) -> None:
        with ov.record(path, wait=wait, warmup=warmup, active=active, plain_steps=0) as rec:
            for index in range(made_steps):
                work(f"step {index}")
                rec.step()
        assert steps(path) == recorded
        assert warm_up_steps(path) == warm_up
        assert [name for name in names(path) if name.startswith("step")] == [f"step {index}" for index in recorded]
        assert rec.notes == ()

    @pytest.mark.parametrize(
        ("steps_in_range", "wait", "recorded", "warm_up"),
        [(1, 2, [0, 1, 2, 3], 2), (1, 3, [3, 4], 0), (2, 4, [5, 6], 0), (99, 3, [0, 1, 2, 3, 4], 3)],
    )
    def test_no_range_is_entered_under_one_session_of_the_profiler_and_left_under_the_next(
        self, steps_in_range: int, wait: int, recorded: list[int], warm_up: int, path: Path
    ) -> None:
        """torch may crash then. So the file begins earlier, or later, than asked for."""
        with ov.record(path, wait=wait, warmup=0, active=2, plain_steps=0) as rec:
            for begin in range(0, 12, steps_in_range):
                with torch.profiler.record_function("around"):
                    for _ in range(begin, min(begin + steps_in_range, 12)):
                        work()
                        rec.step()
        assert steps(path) == recorded
        assert warm_up_steps(path) == warm_up

    @pytest.mark.parametrize(
        ("wait", "warmup", "made_steps", "recorded"),
        [
            (5, 1, 2, [0, 1]),
            (3, 1, 3, [0, 1]),
            (3, 2, 4, [3]),
            (1, 3, 2, [0, 1]),
            (0, 2, 2, [0, 1]),
            (0, 2, 1, [0]),
            (2, 0, 1, [0]),
        ],
    )
    def test_a_program_too_short_to_be_judged_leaves_what_there_is(
        self, wait: int, warmup: int, made_steps: int, recorded: list[int], path: Path
    ) -> None:
        with ov.record(path, wait=wait, warmup=warmup, plain_steps=0) as rec:
            for _ in range(made_steps):
                work()
                rec.step()
        assert steps(path) == recorded
        assert warm_up_steps(path) == 0
        (note,) = rec.notes
        assert f"only {made_steps} of the {wait + warmup + 1} steps" in note

    def test_a_program_without_steps_is_recorded_though_steps_were_to_be_waited_for(self, path: Path) -> None:
        with ov.record(path, wait=2, active=3) as rec:
            work()
        assert names(path) == ["work"]
        assert "marked no step" in rec.notes[0]

    def test_the_trace_is_there_as_soon_as_the_active_steps_are_over(self, path: Path) -> None:
        with ov.record(path, active=1, plain_steps=0) as rec:
            rec.step()
            assert (rec.finished, path.exists()) == (False, False)
            rec.step()
            assert (rec.finished, path.exists()) == (True, True)
            before = path.read_bytes()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                work()
            rec.step()
        assert path.read_bytes() == before

    def test_a_decorator_records_each_call_anew(self, path: Path) -> None:
        @ov.record(path, warmup=0)
        def train(count: int) -> int:
            """Doc."""
            for _ in range(count):
                ov.step()
            return count

        assert train.__doc__ == "Doc."
        for count in (2, 3):
            assert train(count) == count
            assert steps(path) == list(range(count))

    def test_a_decorator_refuses_what_returns_before_it_runs(self, path: Path) -> None:
        async def train() -> None: ...

        with pytest.raises(UsageError, match="use `with` inside it"):
            ov.record(path)(train)

    def test_begin_and_end(self, path: Path) -> None:
        rec = ov.record(path)
        rec.step()
        rec.end()
        rec.begin()
        rec.end()
        rec.end()
        rec.step()
        assert path.exists()
        with pytest.raises(UsageError, match="ended already"):
            rec.begin()

    def test_an_existing_file_is_overwritten(self, path: Path) -> None:
        path.write_text("mine")
        with ov.record(path):
            assert path.read_text() == "mine"
        assert steps(path) == []

    def test_the_program_may_go_to_another_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        with ov.record("x.json") as rec:
            monkeypatch.chdir(tmp_path / "elsewhere")
        assert rec.path == tmp_path / "x.json" and rec.path.exists()

    def test_options_add_stacks_shapes_and_memory(self, path: Path) -> None:
        def seen() -> tuple[bool, bool, bool]:
            events = content(path)["traceEvents"]
            return (
                any(event.get("cat") == "python_function" for event in events),
                any("Input Dims" in event.get("args", {}) for event in events),
                any(event.get("name") == "[memory]" for event in events),
            )

        for chosen in ("", "stacks", "shapes", "memory"):
            with ov.record(path, stacks=chosen == "stacks", shapes=chosen == "shapes", memory=chosen == "memory"):
                work()
            assert seen() == (chosen == "stacks", chosen == "shapes", chosen == "memory")

    @pytest.mark.parametrize(("made_steps", "wait", "stacks"), [(2, 0, True), (2, 2, False), (5, 2, True)])
    def test_no_stacks_are_recorded_while_steps_are_waited_for(
        self, made_steps: int, wait: int, stacks: bool, path: Path
    ) -> None:
        with ov.record(path, wait=wait, active=1, plain_steps=0, stacks=True) as rec:
            for _ in range(made_steps):
                work()
                rec.step()
        recorded = any(event.get("cat") == "python_function" for event in content(path)["traceEvents"])
        assert recorded == stacks
        assert any("has no stacks" in note for note in rec.notes) != stacks

    def test_a_program_s_own_annotation_of_the_same_name_is_not_taken_out(self, path: Path) -> None:
        with ov.record(path) as rec:
            work("[ProfilerStep#1]")
            rec.step()
            work('"name": "ProfilerStep#1"')
            work("ProfilerStep#10")
        notes = ov.load(path).annotations
        expected = ["ProfilerStep#0", "[ProfilerStep#1]", '"name": "ProfilerStep#1"', "ProfilerStep#10"]
        assert {notes.name(row) for row in range(len(notes))} == set(expected)


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"wait": -1}, "wait is -1; it must be 0 or more"),
            ({"warmup": -2}, "warmup is -2"),
            ({"active": 0}, "active is 0; it must be 1 or more"),
            ({"plain_steps": -1}, "plain_steps is -1; it must be 0 or more"),
            ({"light": True, "stacks": True, "memory": True}, "leave out light or stacks and memory"),
            ({"max_size_bytes": 0}, "max_size_bytes is 0"),
            ({"wait": 1.5}, "wait is 1.5; it must be a whole number"),
            ({"active": "5"}, "active is '5'; it must be a whole number"),
        ],
    )
    def test_numbers_that_make_no_sense(self, options: dict[str, Any], message: str, path: Path) -> None:
        with pytest.raises(UsageError, match=message):
            ov.record(path, **options)

    @pytest.mark.parametrize("name", ["x", "x.trace", "x.json.zst", "x.html", "gz"])
    def test_a_file_name_of_another_format(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=rf"name it {name.partition('.')[0]}\.trace\.json\.gz"):
            ov.record(tmp_path / name)

    def test_a_directory_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="does not exist; create it"):
            ov.record(tmp_path / "no" / "x.json").begin()
        (tmp_path / "x.json").mkdir()
        with pytest.raises(UsageError, match="is a directory"):
            ov.record(tmp_path / "x.json").begin()

    def test_a_second_recording_at_the_same_time(self, path: Path, tmp_path: Path) -> None:
        other = ov.record(tmp_path / "y.json")
        with ov.record(path):
            work("before")
            with pytest.raises(UsageError, match=r"x\.trace\.json\.gz is being recorded"):
                other.begin()
            work("after")
        assert names(path) == ["before", "after"]

    def test_beside_a_profiler_of_the_program_which_goes_on(self, path: Path, tmp_path: Path) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            with pytest.raises(UsageError, match="another torch profiler is running"):
                ov.record(path).begin()
            work()
        profile.export_chrome_trace(str(tmp_path / "own.json"))
        assert names(tmp_path / "own.json") == ["work"]
        assert current() is None

    @pytest.mark.parametrize("plain_steps", [0, 2])
    @pytest.mark.parametrize("first", [0, 8], ids=["at once", "between rehearsal and recording"])
    def test_a_profiler_that_starts_inside_takes_its_place(self, first: int, plain_steps: int, tmp_path: Path) -> None:
        """Two profilers at once would crash the process (torch 2.13)."""
        done = python(
            f"""
            def work(): torch.ones(8, 8) @ torch.ones(8, 8)
            own = torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1))
            with ov.record(path, plain_steps={plain_steps}) as rec:
                for index in range(20):
                    work(); rec.step()
                    if index == {first}: own.start()
                    elif index > {first}: own.step()
                own.stop()
                own.export_chrome_trace('own.json')
            print(*rec.notes)
            with ov.record('other.json'): work()
            """.replace("\n            ", "\n"),
            tmp_path,
        )
        message = "The program's own torch.profiler was used, with its schedule.\n"
        assert (done.returncode, done.stdout) == (0, message), done.stderr
        assert steps(tmp_path / "x.trace.json.gz") == steps(tmp_path / "own.json") == [2]
        assert steps(tmp_path / "other.json") == []

    def test_a_profiler_that_outlives_the_recording_is_taken_when_it_stops(self, path: Path, tmp_path: Path) -> None:
        profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        with ov.record(path):
            work("before")
            profile.start()
            work("inside")
        assert not path.exists()
        work("after")
        profile.stop()
        profile.export_chrome_trace(str(tmp_path / "own.json"))
        assert names(path) == names(tmp_path / "own.json") == ["inside", "after"]

    def test_without_torch_one_sentence_says_what_to_install(self, tmp_path: Path) -> None:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport overlapscope as ov\nov.record('x.json').begin()"
        done = subprocess.run(
            [sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert "MissingPackage: recording needs PyTorch" in done.stderr.splitlines()[-1]
        assert "pip install" in done.stderr.splitlines()[-1]


def test_marking_a_step_imports_nothing_heavy() -> None:
    code = (
        "import sys, overlapscope as ov\nov.step(); ov.record('x.json')\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
