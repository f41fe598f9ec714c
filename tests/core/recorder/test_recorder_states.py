"""The table of a recorder's states, and its actions in runs of which a log exists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.recorder.recorder import _MEANINGS, WindowRecorder
from overlapscope.recorder.states import ROWS, TABLE, Event, State, follow
from tests.support import recorder_runs

LOG = Path(__file__).parents[2] / "golden" / "recorder.log"
STARTS = {"try_profiler", "start_whole", "start_rehearsal", "start_recording"}
EVENTS: tuple[Event, ...] = tuple(event for event in get_args(Event) if event not in ("start", "put_off"))
RECORDS = (State.REHEARSAL, State.RECORDING)


class TableRun:
    """A recorder whose questions have random answers."""

    def __init__(self, answers: st.DataObject) -> None:
        self._answers = answers
        self.state = State.DONE
        self.actions: list[str] = []
        self.runs = self.paused = False
        """True while the profiler runs, or the program pauses."""

    def handle(self, event: Event) -> None:
        """Act, and check that each action is possible."""
        self.state = follow(self.state, event, lambda _: self._answers.draw(st.booleans()), self._act)
        assert not self.paused
        assert self.runs == (self.state in RECORDS)

    def _act(self, action: str) -> None:
        self.actions.append(action)
        if action in STARTS:
            assert not self.runs
            self.runs = True
        elif action in ("stop", "forget"):
            self.runs = False
        elif action in ("pause", "resume"):
            assert self.paused == (action == "resume")
            self.paused = not self.paused
        elif action.startswith("write"):
            assert not self.runs


@given(st.sampled_from(["start", "put_off"]), st.lists(st.sampled_from(EVENTS), max_size=30), st.data())
def test_a_profiler_that_starts_is_stopped_and_starts_no_more_after_the_end(
    start: Event, events: list[Event], answers: st.DataObject
) -> None:
    run = TableRun(answers)
    for event in (start, *events, "end"):
        run.handle(event)
    assert run.state is State.DONE and not run.runs
    run.actions.clear()
    for event in EVENTS:
        run.handle(event)
    assert run.state is State.DONE
    assert STARTS.isdisjoint(run.actions) and not any(action.startswith("write") for action in run.actions)


@given(st.lists(st.sampled_from(EVENTS), max_size=30), st.data())
def test_a_recording_is_written_once_unless_it_is_recorded_again(events: list[Event], answers: st.DataObject) -> None:
    run = TableRun(answers)
    for event in ("start", *events, "end"):
        run.handle(event)
    between = "".join({"write": "w", "start_recording": "s", "record_again": "s"}.get(a, "") for a in run.actions)
    # The first may be of the rehearsal, and the last of a program that ends before its next window.
    assert re.fullmatch(r"w?(s+w)*s*w?", between)


@given(st.sampled_from(State), st.sampled_from(EVENTS), st.data())
def test_the_program_pauses_for_all_that_takes_long(state: State, event: Event, answers: st.DataObject) -> None:
    run = TableRun(answers)
    run.state, run.runs = state, state in RECORDS
    run.handle(event)
    if event in ("step", "close", "memory") and "stop" in run.actions and "try_profiler" not in run.actions:
        assert run.actions.index("pause") < run.actions.index("stop") < run.actions.index("resume")


def test_every_state_is_reached_and_left_and_every_word_of_the_table_has_a_meaning() -> None:
    rows = [row for of_event in ROWS.values() for row in of_event]
    assert {row.state for row in rows} - {None} == set(State) == {state for state, _ in ROWS}
    words = {row.question for row in rows} | {action for row in rows for action in row.actions}
    short = {word for word, meaning in _MEANINGS.items() if meaning.__name__ == "<lambda>"}
    assert short <= words - {None} <= _MEANINGS.keys()
    # An event that a row names has a row.
    assert all((row.state or state, row.event) in ROWS for (state, _), of in ROWS.items() for row in of if row.event)


def test_the_page_on_the_recorder_has_the_table() -> None:
    page = Path(__file__).parents[3] / "docs" / "how-it-works" / "recorder.md"
    assert TABLE.strip() in page.read_text()
    assert all(f"`{state.name}`" in page.read_text() for state in State)


def logged() -> dict[int, list[str]]:
    """Return a log of the recorder before it had a table, in runs that together show all its actions, by seed."""
    runs = re.split(r"^run (\d+)\n", LOG.read_text(), flags=re.MULTILINE)[1:]
    return {int(seed): lines.splitlines() for seed, lines in zip(runs[::2], runs[1::2], strict=True)}


def test_the_table_has_the_recorder_do_what_it_did_before_there_was_one() -> None:
    for seed, expected in logged().items():
        lines = []
        for (event, did, state), group in groupby(recorder_runs.run(seed)):
            count = len(list(group))
            lines.append(f"{f'{count}x ' if count > 1 else ''}{event}: {did or '-'} -> {state}")
        assert lines == expected, f"run {seed}"


def test_a_recording_that_stays_says_so_of_gpu_times_if_later_ones_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    recorders = list[WindowRecorder]()

    class KeptWindow(WindowRecorder):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            recorders.append(self)

    monkeypatch.setattr(recorder_runs, "WindowRecorder", KeptWindow)
    # In the former, neither the rehearsal nor the recording has any, and the program ends early. In the latter, the
    # rehearsal cannot be stopped, and the recording has none. In the third, only a recording before it has none, and in
    # the last, the rehearsal cannot be stopped.
    for seed, said in ((13654, True), (7190, True), (3334, False), (1260, False)):
        did = [did for _, did, _ in recorder_runs.run(seed)]
        assert sum("write" in actions for actions in did) == 1 or not said
        assert any("has no times of GPU ops" in note for note in recorders[-1].notes) == said


def test_an_error_anywhere_does_not_reach_the_program_and_leaves_no_profiler_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random, failed = Random(0), Counter[int]()

    def failing(meaning: Callable[[WindowRecorder], object]) -> Callable[[WindowRecorder], object]:
        def call(recorder: WindowRecorder) -> object:
            if failed[seed] < 2 and random.random() < (0.5 if failed[seed] else 0.02):
                failed[seed] += 1
                raise OSError
            return meaning(recorder)

        return call

    for word, meaning in _MEANINGS.items():
        monkeypatch.setitem(_MEANINGS, word, failing(meaning))
    for seed in range(100):
        events: list[tuple[str, str, str]] = []
        # Only the error of a start is raised.
        with suppress(OSError):
            events += recorder_runs.run(seed)
        counts = Counter(action.split()[0] for _, did, _ in events for action in did.split(", ") if did)
        assert counts["start"] == counts["stop"] + counts["abandon"], f"run {seed}"
        assert not events or events[-1][::2] == ("end", "DONE")
    assert len(failed) > 30
