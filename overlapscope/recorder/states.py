"""The table of a recorder's states: its actions at each event, and its state after them."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable
from typing import Literal, NamedTuple

Event = Literal["start", "put_off", "cuda", "step", "open", "memory", "close", "end", "failed", "abandon", "discard"]
"""Events of a recorder.

`start` or `put_off` is the first, `cuda` the first use of CUDA, and `step` the end of a step. A clock may `open` and
`close` windows. At `memory`, the memory of what was recorded is checked. `end` is the program's end, and `failed` an
error. `discard` gives the recording up, and `abandon` does so on another thread than its own, where another profiler is
about to start. Stopping ours would crash the process then (torch 2.13), unless it records all threads, so it is only
forgotten.
"""


class State(enum.Enum):
    """States of a recorder. They follow in this order, though some may be left out, and some come again."""

    PUT_OFF = 0  # The recording starts when the program uses its GPU or ends a step.
    REHEARSAL = 1  # The program's first steps are recorded.
    UNMARKED = 2  # A recording without a step is in the file, and the profiler is off. A step starts it again.
    BETWEEN = 3  # The profiler is off: the program settles, steps are timed, and a window will open.
    RECORDING = 4  # A window is open.
    AFTER = 5  # The trace is written, and steps are timed.
    SAMPLING = 6  # The steps are timed, and the host is sampled in steps of their own.
    SETTLING = 7  # All is written, but the program has just begun: its pace may change. Then it is recorded again.
    CLOCKING = 8  # The same later: steps are clocked until the program ends.
    DONE = 9  # Nothing is recorded any more, or nothing yet.

    @property
    def records(self) -> bool:
        """True if anything is being recorded, or will be."""
        return self.value <= State.RECORDING.value


TABLE = """
state                     event      if                 do                                             then
DONE                      put_off    -                  -                                              PUT_OFF
DONE                      start      -                  -                                              begin
PUT_OFF                   cuda,step  -                  -                                              begin
UNMARKED                  step,open  may_start          -                                              begin
PUT_OFF,BETWEEN           open       may_start          start_recording                                RECORDING
any                       begin      opens_later        try_profiler,stop                              BETWEEN
any                       begin      lacks_rehearsal    start_whole                                    RECORDING
any                       begin      is_past_rehearsal  -                                              BETWEEN
any                       begin      -                  start_rehearsal                                REHEARSAL

REHEARSAL                 step       one_step_is_left   look                                           memory
REHEARSAL                 step       steps_are_left     -                                              memory
REHEARSAL                 step       ranges_close       pause,stop,look,resume                         BETWEEN
REHEARSAL                 step       -                  continue_as_recording                          RECORDING,step
REHEARSAL,RECORDING       memory     events_fit         -                                              -
REHEARSAL,RECORDING       memory     is_unmarked        blame_no_option                                unmarked
REHEARSAL                 memory     -                  pause,stop,look,write_rehearsal,resume         BETWEEN
RECORDING                 memory     -                  -                                              over
REHEARSAL,RECORDING       close      is_unmarked        -                                              unmarked
REHEARSAL,RECORDING       unmarked   -                  count,pause,stop,look,write_unmarked,resume    UNMARKED

BETWEEN                   step       -                  time                                           timed
BETWEEN                   timed      may_record         start_recording                                RECORDING
BETWEEN                   timed      is_hopeless        pause,stop,write,resume,stay                   given_up
BETWEEN                   given_up   is_first_time      -                                              AFTER
BETWEEN                   given_up   -                  -                                              settle
RECORDING                 step       -                  judge                                          judged
RECORDING                 judged     steps_are_left     -                                              memory
RECORDING                 judged     -                  -                                              over
RECORDING                 close      -                  -                                              over
RECORDING                 over       windows_follow     pause,stop,write,look,resume                   another
RECORDING                 over       clocks_all         pause,stop,write,look,resume                   written
RECORDING                 over       -                  pause,stop,write,resume                        written
RECORDING                 another    has_failed         -                                              DONE
RECORDING                 another    -                  plan_window                                    BETWEEN
RECORDING                 written    has_failed         -                                              DONE
RECORDING                 written    is_timed_after     -                                              AFTER
RECORDING                 written    -                  -                                              DONE

AFTER                     step       profiler_runs      -                                              DONE
AFTER                     step       -                  time                                           timed
AFTER                     timed      steps_are_long     pause,await_steps,amend,resume                 settle
AFTER                     timed      steps_are_timed    pause,await_steps,amend,resume,start_sampling  SAMPLING
SAMPLING                  step       -                  sample                                         sampled
SAMPLING                  sampled    is_sampled         end_sampling,amend                             settle
any                       settle     clocks_all         -                                              SETTLING
any                       settle     -                  -                                              DONE
SETTLING,CLOCKING         step       pace_differs       record_again                                   BETWEEN
SETTLING                  step       has_settled        -                                              CLOCKING

REHEARSAL,RECORDING       end        is_unmarked_again  count,pause,stop,look,write_unmarked,resume    UNMARKED,end
PUT_OFF                   end        starts_at_once     blame_program                                  ended
REHEARSAL,RECORDING       end        -                  stop,write,clock_first,explain                 ended
PUT_OFF,UNMARKED,BETWEEN  end        -                  write,clock_first,explain                      ended
any                       end        clocks_all         clock                                          ended
any                       end        -                  -                                              ended
any                       ended      -                  finish_sampling,add_steps,amend,explain_times  DONE
any                       failed     has_rehearsal      stop,keep_rehearsal                            DONE
any                       failed     -                  stop,fail                                      DONE
any                       abandon    others_may_stop    stop,forget                                    DONE
any                       abandon    -                  forget                                         DONE
any                       discard    -                  stop,forget                                    DONE
"""
"""The recorder's actions, in order, at an event in one of some states, and the state after them.

The first row whose question (`if`) is answered with yes counts. Without such a row, nothing happens. If the last column
names an event, it happens after the actions. `recorder` answers the questions and has the actions.
"""


class StateRow(NamedTuple):
    """A row of the table, for a state and an event."""

    question: str | None
    actions: tuple[str, ...]
    state: State | None
    """State after the actions; None if it stays the same."""
    event: str | None
    """Event that happens then."""


def _rows() -> dict[tuple[State, str], list[StateRow]]:
    rows = defaultdict[tuple[State, str], list[StateRow]](list)
    for line in filter(None, TABLE.splitlines()[2:]):
        states, events, *rest = line.split()
        question, actions, then = ((*cell.split(","),) if cell != "-" else () for cell in rest)
        state = next((State[name] for name in then if name.isupper()), None)
        row = StateRow(question[0] if question else None, actions, state, next((e for e in then if e.islower()), None))
        for each in State if states == "any" else (State[name] for name in states.split(",")):
            for event in events.split(","):
                rows[each, event].append(row)
    return dict(rows)


ROWS = _rows()
"""Rows of the table by state and event."""


def follow(state: State, event: Event, ask: Callable[[str], bool], act: Callable[[str], object]) -> State:
    """Act as the table has it when an event happens.

    Args:
        state: Present state.
        event: What happens.
        ask: Function that answers a question of the table.
        act: Function that does an action of the table.

    Returns:
        The state after it.
    """
    next_event: str | None = event
    while next_event is not None:
        rows = ROWS.get((state, next_event), ())
        row = next((row for row in rows if row.question is None or ask(row.question)), None)
        if row is None:
            break
        for action in row.actions:
            act(action)
        state, next_event = row.state or state, row.event
    return state
