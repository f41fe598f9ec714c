"""The decode step of an inference server: its launches, its cache and its scheduler.

A server such as vLLM generates a token for each of its running requests in a step. Here one joins in each step whose
keys and values were kept in the host's memory, so that they come over the link before it can run. The marks around the
model are vLLM's, from which a step's phase and batch are read.

Look for: run eagerly, a small model's decode step waits for launches (`dispatch`), and as a CUDA graph for little. A
cache that is fetched when its request begins is exposed (`same-stream`); fetched during the step before, it is hidden.
While the scheduler works in Python between two steps, the GPU has nothing to do (`python`). Caches that arrive are
checked to the bit, and the graph's results against the model's.
"""

import time
from collections.abc import Callable
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant, WrongResults

TRIES = 6


class DecodeLayer(nn.Module):
    """A layer of a transformer that takes a new token of each request."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """Return the layer's output of tokens (request, width) with their caches (request, 2, head, place, width)."""
        query, key, value = self.inputs(self.norm(x)).view(len(x), 3, self.heads, 1, -1).unbind(1)
        keys, values = torch.cat([cache[:, 0], key], 2), torch.cat([cache[:, 1], value], 2)
        x = x + self.outputs(functional.scaled_dot_product_attention(query, keys, values).flatten(1))
        result: torch.Tensor = x + self.down(functional.gelu(self.up(x)))
        return result


class CachedRequests:
    """Caches of all requests on the GPU, and in the host's memory for those that have been moved out."""

    def __init__(self, requests: int, shape: tuple[int, ...]) -> None:
        self.cache = torch.randn(requests, *shape, device="cuda", dtype=torch.float16)
        self.kept = self.cache.cpu().pin_memory()
        self._copies = torch.cuda.Stream()

    def fetch(self, request: int) -> None:
        """Fetch a request's cache, in the order of the current stream."""
        self.cache[request].copy_(self.kept[request], non_blocking=True)

    def fetch_ahead(self, request: int, after: torch.cuda.Event) -> None:
        """Fetch the cache of a request that doesn't run in this step, beside its compute, after an earlier event."""
        self._copies.wait_event(after)
        with torch.cuda.stream(self._copies):
            self.fetch(request)

    def wait(self) -> None:
        """Have the current stream wait for what is fetched ahead."""
        torch.cuda.current_stream().wait_stream(self._copies)


def as_graph(work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Return some work as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay


def schedule(tokens: list[int], ms: float) -> None:
    """Do a scheduler's work in Python: sort the requests by their tokens, again and again."""
    until = time.perf_counter() + ms / 1e3
    while time.perf_counter() < until:
        sorted(enumerate(tokens), key=lambda pair: (pair[1] % 7, pair[0]))


def prepare(
    layers: int,
    width: int,
    heads: int,
    places: int,
    batch: int,
    graphed: bool = True,
    fetched: Literal["", "late", "ahead"] = "",
    schedule_ms: float = 0.0,
) -> Program:
    model = nn.ModuleList(DecodeLayer(width, heads) for _ in range(layers)).cuda().half().requires_grad_(False)
    caches = CachedRequests(batch + 1, (layers, 2, heads, places, width // heads))
    hidden = torch.randn(batch, width, device="cuda", dtype=torch.float16)
    running = torch.zeros(batch, device="cuda", dtype=torch.long)
    batches = [torch.tensor([n for n in range(batch + 1) if n != out]).pin_memory() for out in range(batch + 1)]

    def decode() -> torch.Tensor:
        x = hidden
        for number, layer in enumerate(model):
            x = layer(x, caches.cache[:, number][running])
        return x

    run = as_graph(decode) if graphed else decode
    begun = torch.cuda.Event()
    turn = 0

    @torch.no_grad()
    def step() -> torch.Tensor:
        """Run all requests but one, which runs in the next step."""
        nonlocal turn
        with torch.profiler.record_function(f"execute_context_0(0)_generation_{batch}({batch})"):
            caches.wait()
            running.copy_(batches[turn], non_blocking=True)
            if fetched == "late":
                caches.fetch((turn - 1) % (batch + 1))
            begun.record()
            result = run()
            if fetched == "ahead":
                # After the launch of the graph, which takes the host longer than that of a copy.
                caches.fetch_ahead(turn, begun)
        schedule(result.argmax(1).tolist(), schedule_ms)
        turn = (turn + 1) % (batch + 1)
        return result

    @torch.no_grad()
    def count_wrong() -> WrongResults:
        """Count steps with other results than the model's, or with another cache than was kept."""
        wrong = 0
        for _ in range(TRIES):
            torch.cuda.synchronize()
            arrives = (turn - 1) % (batch + 1) if fetched == "late" else turn
            if fetched:
                caches.cache[arrives] = 0
            result = step().clone()
            torch.cuda.synchronize()
            wrong += not (torch.equal(caches.cache, caches.kept.cuda()) and bool(result.isfinite().all()))
            wrong += not torch.allclose(result, decode(), rtol=1e-2, atol=1e-2)
        return WrongResults(wrong, 2 * TRIES)

    return Program(step, count_wrong=count_wrong)


DECODE = {"layers": 8, "width": 1024, "heads": 16, "places": 512, "batch": 8}

EXPERIMENT = Experiment(
    name="serving",
    title="The decode step of an inference server",
    shows="A graph replaces many launches, a cache fetched a step ahead is free, a slow scheduler costs all its time.",
    sizes={"small": DECODE, "paper": DECODE},
    prepare=prepare,
    variants=(
        Variant(
            "eager",
            {"graphed": False},
            shows="Each kernel is launched by itself: the GPU waits for the host.",
            truth=Truth(idle="dispatch", findings=("dispatch",), no_findings=("same-stream",)),
            wrong_results="none",
        ),
        Variant(
            "graph",
            {},
            shows="The same kernels as one graph.",
            truth=Truth(no_findings=("same-stream",)),
            wrong_results="none",
        ),
        Variant(
            "cache_late",
            {"fetched": "late"},
            shows="The cache of the request that joins comes before the step, on its stream.",
            truth=Truth(
                exposed_copy="same-stream",
                hidden_copy_pct=(0.0, 1.0),
                findings=("same-stream",),
                no_findings=("pageable-memory",),
            ),
            wrong_results="none",
        ),
        Variant(
            "cache_ahead",
            {"fetched": "ahead"},
            shows="It comes during the step before, and is there in time.",
            truth=Truth(hidden_copy_pct=(80.0, 100.0), no_findings=("same-stream", "pageable-memory")),
            wrong_results="none",
        ),
        Variant(
            "slow_scheduler",
            {"schedule_ms": 3.0},
            shows="The scheduler works for 3 ms between two steps.",
            truth=Truth(idle="python", findings=("python",), no_findings=("same-stream",), least_share=0.7),
            wrong_results="none",
        ),
    ),
    faster=(("graph", "eager"), ("cache_ahead", "cache_late"), ("graph", "slow_scheduler")),
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
