"""Which constants a prediction rests on, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from overlapscope.prediction.constants import Constants, SizedTime
from overlapscope.prediction.result import Origin
from overlapscope.trace import Kind

FALLBACK = Constants(
    h2d_two_way=0.91,
    d2h_two_way=0.91,
    launch_latency_ns=6_000,
    copy_latency_ns=6_500,
    kernel_gap_ns=1_300,
    handover_ns=2_500,
    return_ns=4_500,
    sync_call_ns=3_000,
    launch_call_ns=4_500,
    copy_call_ns=4_500,
    event_call_ns=700,
    graph_call_ns=10_000,
    graph_node_call_ns=50.0,
    graph_latency_ns=12_000,
    graph_gap_ns=256,
)
