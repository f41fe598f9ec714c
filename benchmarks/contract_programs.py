"""Programs whose copies or collectives overlap, and mutations of each that lose something; see `contract_mutations`.

Each function prepares its tensors and returns a step. A mutation changes one thing, at a line that ends in a comment
with its name; the loss must be reported at that line, or name it as what orders the op now.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.contract_compiled import compiled
from benchmarks.contract_inference import activations, answers, decode, graph, weights
from benchmarks.contract_ranks import buckets, replicas, two_collectives
from benchmarks.contract_training import gradients, loader, predictions, prefetch
from benchmarks.contract_variants import Expected, MutationVariant, Step

_PAGEABLE = Expected(("memory",), "pageable", ("upload",))
_DROPPED = Expected(("overlap",), "same stream", ("upload",))
_EARLY = Expected(("overlap",), "event wait for stream")
_SYNC = Expected(("sync",), "host sync")
_BLOCKING = Expected(("sync",), "host sync", ("upload",))
_COMPILED = {
    "dropped": _DROPPED,
    "early": _EARLY,
    "pageable": _PAGEABLE,
    "blocking": _BLOCKING,
    "item": _SYNC,
    "synchronize": _SYNC,
}
_WAITS = Expected(("overlap",), "overlap lost: allreduce")

_Programs = dict[str, tuple[Callable[[MutationVariant], Step], dict[str, Expected]]]
PROGRAMS: _Programs = {
    "prefetch": (
        prefetch,
        {
            "dropped": _DROPPED,
            "early": _EARLY,
            "blocking": _BLOCKING,
            "pageable": _PAGEABLE,
            "item": _SYNC,
            "print": _SYNC,
            "synchronize": _SYNC,
            "depth0": Expected(("overlap",), "event wait for stream", ("upload",)),
        },
    ),
    "activations": (
        activations,
        {
            "dropped": Expected(("overlap",), "same stream", ("download",)),
            "early": _EARLY,
            "pageable": Expected(("memory",), "pageable", ("download", "upload again")),
            "blocking": Expected(("sync",), "host sync", ("upload again",)),
            "depth0": Expected(("overlap",), "event wait for stream"),
        },
    ),
    "weights": (
        weights,
        {
            "dropped": _DROPPED,
            "early": _EARLY,
            "pageable": _PAGEABLE,
            "depth0": Expected(("overlap",), "event wait for stream"),
            "synchronize": _SYNC,
        },
    ),
    "gradients": (
        gradients,
        {
            "dropped": Expected(("overlap",), "same stream", ("bucket",)),
            "merged bucket": Expected(("overlap", "amount"), "merged bucket|beside no kernel|D2H"),
            "blocking": Expected(("sync",), "host sync", ("bucket",)),
            "early": _EARLY,
            "pageable": Expected(("memory",), "pageable", ("bucket",)),
            "item": _SYNC,
        },
    ),
    "predictions": (
        predictions,
        {
            "dropped": Expected(("overlap",), "same stream", ("download",)),
            "before the backward": Expected(("sync", "memory"), "host sync|pageable"),
            "early": _EARLY,
            "pageable": Expected(("memory",), "pageable", ("download",)),
            "list": _SYNC,
        },
    ),
    "loader": (
        loader,
        {
            "not pinned": Expected(("memory",), "pageable", ("upload",)),
            "no workers": Expected(("loader",), "workers", ("",)),
            "pin in loop": Expected(("allocation",), "pin_memory"),
            "blocking": _BLOCKING,
            "growing": Expected(("allocation",), "allocation"),
            "empty cache": Expected(("allocation",), "cudaFree|cudaMalloc|allocation", ("",)),
        },
    ),
    "decode": (
        decode,
        {
            "dropped": _DROPPED,
            "pageable": _PAGEABLE,
            "depth0": Expected(("overlap",), "event wait for stream"),
            "nonzero": _SYNC,
            "second item": _SYNC,
        },
    ),
    "graph": (
        graph,
        {
            "dropped": _DROPPED,
            "pageable": _PAGEABLE,
            "blocking": _BLOCKING,
            "early": _EARLY,
            "not captured": Expected(("launches",), "CUDA graph", ("",)),
            "synchronize": _SYNC,
        },
    ),
    "answers": (
        answers,
        {
            "merged": Expected(("overlap",), "event wait for stream|same stream", ("upload",)),
            "dropped": _DROPPED,
            "early": _EARLY,
            "pageable": _PAGEABLE,
            "blocking": Expected(("sync",), "host sync", ("download",)),
        },
    ),
    "compiled": (compiled, _COMPILED),
    "compiled_graphs": (
        partial(compiled, mode="reduce-overhead"),
        {**_COMPILED, "not captured": Expected(("launches",), "CUDA graph", ("",))},
    ),
}
"""Each program of one GPU with its mutations."""
COMPILED = ("compiled", "compiled_graphs")
RANK_PROGRAMS: _Programs = {
    "replicas": (
        replicas,
        {
            "merged bucket": Expected(("overlap", "amount"), "allreduce"),
            "blocking hook": _WAITS,
            "item": _SYNC,
        },
    ),
    "buckets": (
        buckets,
        {
            "merged bucket": Expected(("overlap", "amount"), "allreduce"),
            "wait at once": _WAITS,
            "item": _SYNC,
        },
    ),
    "two_collectives": (
        two_collectives,
        {
            "one communicator": Expected(("overlap", "amount"), r"allreduce \(default_pg\)"),
            "wait at once": _WAITS,
            "item": _SYNC,
        },
    ),
}
"""The same for programs of several GPUs."""
ALL_PROGRAMS = PROGRAMS | RANK_PROGRAMS


def place_of(program: str, mark: str) -> tuple[str, set[int]]:
    """Return the file of a program, and the lines that Kineto states for those that end in a comment.

    Kineto states the line at which a function begins.
    """
    prepare = ALL_PROGRAMS[program][0]
    function = prepare.func if isinstance(prepare, partial) else prepare
    path = Path(inspect.getfile(function))
    source = path.read_text()
    marked = {number for number, line in enumerate(source.splitlines(), 1) if line.endswith(f"  # {mark}")}
    [whole] = [
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == function.__name__
    ]
    functions = [node for node in ast.walk(whole) if isinstance(node, ast.FunctionDef)]
    around = [[node for node in functions if node.lineno <= number <= (node.end_lineno or 0)] for number in marked]
    return path.name, {max(node.lineno for node in nodes) for nodes in around if nodes}
