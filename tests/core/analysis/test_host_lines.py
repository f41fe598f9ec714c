"""Sampled stacks by line of the user's code, and as a tree: samples always add up to those of the main thread."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.host_lines import FlamePart, flame, host_lines, place
from overlapscope.trace.host_activity import HostActivity, SampledStack, StackFrame

_MAIN = 7
_TORCH = "/venv/lib/python3.12/site-packages/torch"
_FRAMES = (
    StackFrame("/home/me/train.py", 50, "main"),
    StackFrame("/home/me/train.py", 12, "step"),
    StackFrame("/home/me/train.py", 14, "step"),
    StackFrame(f"{_TORCH}/nn/modules/module.py", 1775, "Module._call_impl"),
    StackFrame(f"{_TORCH}/nn/modules/module.py", 1786, "Module._call_impl"),
    StackFrame(f"{_TORCH}/nn/modules/linear.py", 125, "Linear.forward"),
    StackFrame("<string>", 2, "__init__"),
    # The user's own wrappers are what the user wrote.
    StackFrame("/home/me/train.py", 30, "wrapper"),
    # In an editable installation.
    StackFrame("/src/overlapscope/commands/run.py", 275, "_RecordedProgram._changed"),
)


def _activity(*stacks: SampledStack) -> HostActivity:
    return HostActivity(
        thread=_MAIN, steps=1, span_ns=1_000_000, interval_ns=1, sampler="py-spy", frames=_FRAMES, stacks=stacks
    )


def _main(frames: tuple[int, ...], samples: int, running: int = 0) -> SampledStack:
    return SampledStack(_MAIN, frames, samples, running)


def _of_caller(parts: tuple[FlamePart, ...], caller: int) -> list[tuple[str, int]]:
    return [(part.function, part.samples) for part in parts if part.caller == caller]


def test_a_line_is_the_users_innermost_and_names_the_library_function_that_it_calls() -> None:
    lines = host_lines(_activity(_main((0, 1, 3, 5), 30, 20), _main((0, 2, 8), 10, 10), _main((0, 1), 5)))
    assert [(line.place, line.function, line.calls, line.samples, line.running) for line in lines] == [
        ("train.py:12", "step", (("Linear.forward", 30),), 35, 20),
        ("train.py:14", "step", (("_RecordedProgram._changed", 10),), 10, 10),
    ]


def test_other_threads_do_not_count() -> None:
    activity = _activity(_main((0,), 3), SampledStack(8, (0, 1), 100, 100))
    assert [line.samples for line in host_lines(activity)] == [3]
    assert _of_caller(flame(activity), -1) == [("main", 3)]


def test_stacks_without_the_users_code_count_for_their_innermost_line_and_those_without_frames_for_none() -> None:
    lines = host_lines(_activity(_main((3, 5), 2), _main((), 1)))
    assert [(line.place, line.function, line.samples) for line in lines] == [
        ("linear.py:125", "Linear.forward", 2),
        ("", "", 1),
    ]


def test_lines_of_the_users_code_are_parts_of_their_own_and_lines_of_a_librarys_function_are_not() -> None:
    parts = flame(_activity(_main((0, 1, 5), 4), _main((0, 1, 5), 3), _main((0, 2), 2)))
    assert [(part.caller, part.function, part.line, part.is_own, part.samples) for part in parts] == [
        (-1, "main", 50, True, 9),
        (0, "step", 12, True, 7),
        (0, "step", 14, True, 2),
        (1, "Linear.forward", 0, False, 7),
    ]


def test_what_a_wrapper_of_a_library_calls_is_part_of_its_caller() -> None:
    activity = _activity(_main((0, 1, 3, 5), 5, 4), _main((0, 1, 4), 3), _main((0, 7), 2), _main((4,), 1))
    assert [(part.caller, part.function, part.samples) for part in flame(activity)] == [
        (-1, "main", 10),
        (-1, "", 1),
        (0, "step", 8),
        (0, "wrapper", 2),
        (2, "Linear.forward", 5),
    ]


def test_small_parts_of_a_caller_are_joined() -> None:
    parts = flame(_activity(_main((0, 1), 995), _main((0, 2), 3), _main((0, 5), 2, 1)))
    assert _of_caller(parts, 0) == [("step", 995), ("", 5)]
    assert parts[-1].running == 1


def test_a_place_has_no_directory_on_any_system() -> None:
    assert place("C:\\work\\train.py", 3) == "train.py:3"
    assert place("<string>", 0) == "<string>"
    assert place("", 0) == ""


def test_a_tree_of_the_greatest_depth_that_a_file_may_have_is_drawn() -> None:
    parts = flame(_activity(_main((0, 1) * 500, 1)))
    assert len(parts) == 100
    assert {part.samples for part in parts} == {1}


_STACKS = st.lists(
    st.tuples(
        st.sampled_from((_MAIN, 8)),
        st.lists(st.integers(0, len(_FRAMES) - 1), max_size=5).map(tuple),
        st.integers(1, 500),
    ),
    max_size=20,
)


@given(_STACKS, st.data())
def test_lines_and_parts_add_up_to_the_samples_of_the_main_thread(
    drawn: list[tuple[int, tuple[int, ...], int]], data: st.DataObject
) -> None:
    stacks = [SampledStack(*stack, data.draw(st.integers(0, stack[2]))) for stack in drawn]
    activity = _activity(*stacks)
    whole = [stack for stack in stacks if stack.thread == _MAIN]
    samples, running = sum(stack.samples for stack in whole), sum(stack.running for stack in whole)
    lines, parts = host_lines(activity), flame(activity)
    assert (sum(line.samples for line in lines), sum(line.running for line in lines)) == (samples, running)
    called: dict[int, list[FlamePart]] = defaultdict(list)
    for number, part in enumerate(parts):
        assert part.caller < number
        called[part.caller].append(part)
    assert sum(part.samples for part in called[-1]) == samples
    assert sum(part.running for part in called[-1]) == running
    for number, part in enumerate(parts):
        assert 0 <= part.running <= part.samples
        inner = called.get(number, [])
        assert sum(other.samples for other in inner) <= part.samples
        assert not inner or part.function
        assert part.samples >= 0.005 * samples or not part.function
    innermost = sum(
        part.samples - sum(other.samples for other in called.get(number, [])) for number, part in enumerate(parts)
    )
    assert innermost == samples
