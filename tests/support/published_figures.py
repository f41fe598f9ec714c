"""Figures that the scenarios' sources published, copied by hand from their tables, under our names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TUTORIAL, ARTICLE = "PyTorch tutorial, GPU not stated", "A800, offload article"
NVIDIA_POST = 'RTX 2070 SUPER, re-run of NVIDIA\'s "How to Overlap Data Transfers in CUDA C/C++"'

PUBLISHED: Mapping[str, tuple[str, Mapping[str, Mapping[str, float]]]] = {
    "pin_cost": (
        TUTORIAL,
        {
            "pageable_to": {"wall_ms": 0.4667},
            "pinned_to": {"wall_ms": 0.3703},
            "pin_memory": {"wall_ms": 0.3607},
            "pin_memory_to": {"wall_ms": 0.7238},
        },
    ),
    "many_small_copies": (
        TUTORIAL,
        {
            "blocking": {"wall_ms": 25.1, "stream_synchronize_calls": 1000},
            "non_blocking": {"wall_ms": 19.2, "device_synchronize_calls": 1},
        },
    ),
    "pin_strategies": (
        TUTORIAL,
        {
            "pageable_blocking": {"wall_ms": 616.8},
            "pageable_non_blocking": {"wall_ms": 544.1},
            "pinned_blocking": {"wall_ms": 371.1},
            "pinned_non_blocking": {"wall_ms": 345.9},
            "pin_then_copy_blocking": {"wall_ms": 996.5},
            "pin_then_copy_non_blocking": {"wall_ms": 678.0},
        },
    ),
    "pin_threads": (
        TUTORIAL,
        {
            "blocking": {"wall_ms": 619.8},
            "non_blocking": {"wall_ms": 542.9},
            "pin_0_threads": {"wall_ms": 658.7},
            "pin_4_threads": {"wall_ms": 360.3},
        },
    ),
    "d2h_hazard": (TUTORIAL, {"no_sync": {"first_wrong_try": 0}}),
    "offload_store": (
        ARTICLE,
        {
            "cpu": {"store_ms": 1595.6, "load_ms": 314.4, "per_layer_store_ms": 26.59},
            "cpu_pin_memory": {"store_ms": 3327.3, "load_ms": 121.0, "per_layer_store_ms": 55.45},
            "preallocated": {"store_ms": 137.9, "load_ms": 116.5, "per_layer_store_ms": 2.30},
        },
    ),
    "copy_matrix": ("", {}),
    "dataloader": ("", {}),
    "host_work": ("", {}),
    "offload_pipeline": (
        ARTICLE,
        {
            "one_stream": {"wall_ms": 178.0, "h2d_ms": 58.2, "compute_ms": 38.8, "d2h_ms": 62.5, "parts_ms": 159.5},
            "two_streams": {"wall_ms": 90.5},
        },
    ),
    "chunked_streams": (
        NVIDIA_POST,
        {
            "sequential": {"wall_ms": 5.69, "max_error": 1.2e-7},
            "depth_first": {"wall_ms": 4.64, "max_error": 1.2e-7},
            "breadth_first": {"wall_ms": 4.18, "max_error": 1.2e-7},
        },
    ),
    "cuda_graph": ("", {}),
    "stream_matmul": ("", {}),
    "forward_backward": ("", {}),
    "kv_offload": ("", {}),
    "activation_offload": ("", {}),
    "async_checkpoint": ("", {}),
    "fsdp_offload": ("", {}),
    "ddp_training": ("", {}),
}
"""The hardware of each scenario's figures, and the figures of each variant that has any."""

SIZES: Mapping[str, Mapping[str, Any]] = {
    "copy_matrix": {"elements": 5 * 1024 * 1024},
    "pin_cost": {"elements": 1_000_000},
    "many_small_copies": {"tensors": 1000, "elements": 1000, "recorded_tensors": 100},
    "pin_strategies": {"tensors": 1000, "elements": 1_000_000},
    "pin_threads": {"tensors": 1000, "elements": 1_000_000},
    "d2h_hazard": {"rows": 100, "columns": 999_999},
    "offload_store": {"layers": 30},
    "host_work": {"numbers": 1_000_000},
    "offload_pipeline": {"layers": 30},
    "chunked_streams": {"elements": 4 * 1024 * 256 * 4},
    "stream_matmul": {"size": 10_000, "count": 100, "small_size": 256},
}
"""Sizes of the scale `paper`."""

VARIANTS: Mapping[str, set[str]] = {
    "copy_matrix": {f"streamed{streamed}_pinned{pinned}" for streamed in (0, 1) for pinned in (0, 1)},
    "dataloader": {
        *(f"pinned{p}_nonblocking{n}_workers{w}" for p in (0, 1) for n in (0, 1) for w in (0, 4)),
        "prefetcher",
    },
    "host_work": {
        f"{place}_{how}" for place in ("after", "between") for how in ("none", "pinned", "non_blocking", "both")
    },
    "d2h_hazard": {"no_sync", "synchronize", "source_overwritten", "source_kept"},
    "offload_pipeline": {"one_stream", "two_streams", "three_streams"},
    "forward_backward": {
        *(
            f"{model}_{way}"
            for model in ("large", "many_small")
            for way in ("serial", "backward_under_side_stream", "two_streams", "missing_wait")
        ),
        *("many_small_serial_graph", "many_small_two_streams_graph"),
    },
    "cuda_graph": {"eager", "graph_replay", "train_eager", "graphed_callables", "big_eager", "big_graph"},
}
"""Variants of the scenarios that must have exactly these."""
