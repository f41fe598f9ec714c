"""Time of predictions for a million GPU ops: `python -m benchmarks.whatif_speed OPS` prints seconds as JSON."""

from __future__ import annotations

import json
import sys
import time

from benchmarks.synthetic_trace import make
from overlapscope.prediction.graph_builder import build
from overlapscope.prediction.hardware import find_hardware
from overlapscope.prediction.predict import best, predict
from overlapscope.prediction.predicted_trace import predicted_trace
from overlapscope.prediction.replay import replay
from overlapscope.trace.model import Trace

OPS = 1_000_000
CHANGE = "pin"
"""Change that affects a made-up trace."""


def _consistent(ops: int) -> Trace:
    """Return a trace whose times follow from its launches and streams: the replay of a made-up trace."""
    trace = make(ops)
    graph = build(trace, find_hardware(trace, None).constants)
    return predicted_trace(graph, replay(graph))


def _seconds(ops: int) -> dict[str, float]:
    trace = _consistent(ops)
    begin = time.perf_counter()
    graph = build(trace, find_hardware(trace, None).constants)
    built = time.perf_counter()
    replay(graph)
    replayed = time.perf_counter()
    prediction = predict(trace, [CHANGE])
    predicted = time.perf_counter()
    if prediction.after is None:
        raise RuntimeError("the made-up trace cannot be predicted from")
    drawn = time.perf_counter()
    best(trace)
    return {
        "graph": built - begin,
        "replay": replayed - built,
        "prediction": predicted - replayed,
        "timeline": drawn - predicted,
        "best": time.perf_counter() - drawn,
    }


if __name__ == "__main__":
    print(json.dumps(_seconds(int(sys.argv[1]))))
