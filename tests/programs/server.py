"""A small inference server, which batches requests for a transformer, and has the marks and endpoints of vLLM.

    python -m tests.programs.server --traces DIR [--plant CAUSE] [--clock FILE]

It prints its address, and serves until it is ended. `POST /v1/completions` takes `{"prompt": [1, 2], "max_tokens": 8}`,
and `POST /start_profile` and `/stop_profile` record. One thread is the scheduler: each of its steps runs the prompts
that wait (prefill), or one token of each request (decode) from a cache of keys and values, on a GPU from a CUDA graph.
It launches a step before it reads the tokens of the one before, and copies the cache to the host beside the steps.
"""

from __future__ import annotations

import argparse
import gc
import json
import queue
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
WIDTH, HEADS, LAYERS, WORDS = (2048, 16, 24, 4096) if CUDA else (32, 4, 2, 64)
"""Dimensions of the model. A GPU computes a step of it faster than the host launches its kernels one by one."""
SLOTS, LENGTH, BLOCK, USUAL = 8, 256, 16, 5
"""Maximum number of requests at a time, and of tokens of each; number of tokens after which a request's cache is copied
to the host; and number of requests that one plant is about."""
PLANTS = ("tokenizer", "sampler", "offload", "graph", "gc")
"""Causes that can be planted: the scheduler's thread turns tokens into text slowly, sampling reads probabilities from
the GPU one by one, the cache is copied to pageable memory, a batch of `USUAL` has no graph, or each step collects
garbage."""


class Completion:
    """A request, and its answer."""

    def __init__(self, prompt: list[int], max_tokens: int) -> None:
        self.prompt, self.end = prompt, min(LENGTH, len(prompt) + max_tokens)
        self.length, self.slot = len(prompt), 0
        """Number of tokens, of which the newest may not be read yet, and place in the cache."""
        self.tokens: list[int] = []
        self.done = threading.Event()


class ServedModel(nn.Module):
    """A transformer with one slot of its cache for each request, and the last token of each."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.inputs = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.outputs = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)
        self.cache: torch.Tensor
        self.register_buffer("cache", torch.zeros(SLOTS, LENGTH, LAYERS, 2, HEADS, WIDTH // HEADS))
        self.last: torch.Tensor
        self.register_buffer("last", torch.zeros(SLOTS, dtype=torch.long))

    def forward(self, slots: torch.Tensor, at: torch.Tensor, tokens: torch.Tensor | None = None) -> torch.Tensor:
        """Return the scores of each request's next token. `at` has the places (request, token) of `tokens`.

        Without tokens, each request has its last one.
        """
        unseen = torch.arange(LENGTH, device=at.device) > at[:, None, :, None]
        mask = torch.zeros(unseen.shape, device=at.device).masked_fill(unseen, float("-inf"))
        x = self.words(self.last[slots, None] if tokens is None else tokens) + self.places(at)
        for norm, inside, out, cache in zip(self.norms, self.inputs, self.outputs, self.cache.unbind(2), strict=True):
            made = inside(norm(x)).unflatten(2, (3, HEADS, -1))
            cache[slots[:, None], at] = made[:, :, 1:]
            key, value = cache[slots].permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(made[:, :, 0].transpose(1, 2), key, value, mask)
            x = x + out(mixed.transpose(1, 2).flatten(2))
        scores: torch.Tensor = self.head(x[:, -1])
        return scores


class BatchScheduler(threading.Thread):
    """Runs steps while there are requests."""

    def __init__(self, traces: Path, plant: str | None, clock: Path | None) -> None:
        super().__init__(name="scheduler", daemon=True)
        self.waiting: queue.Queue[Completion] = queue.Queue()
        self.orders: queue.Queue[tuple[dict[str, Any] | None, threading.Event]] = queue.Queue()
        """Options of recordings to start, and None to stop."""
        self._traces, self._plant, self._clock = traces, plant, clock
        self._profiler: torch.profiler.profile | None = None
        self._begun: list[tuple[Any, str]] = []
        """When each recorded step began, and its phase; an empty phase while there are no requests."""
        self._running: list[Completion] = []
        with torch.device(DEVICE):
            self._model = ServedModel().eval()
        self._graphs: dict[int, tuple[Any, ...]] = {}
        self._copies = torch.cuda.Stream() if CUDA else None
        self._pinned = cycle(torch.zeros(2, SLOTS * (2 + 2 * LENGTH), dtype=torch.long, pin_memory=CUDA))
        """Memory for inputs and tokens of steps in turn, since the step before may still use its own."""
        self._saved = torch.zeros(self._model.cache.shape, pin_memory=CUDA)

    @torch.inference_mode()
    def run(self) -> None:
        for size in range(1, SLOTS + 1) if CUDA else ():
            if not (self._plant == "graph" and size == USUAL):
                self._graphs[size] = self._captured(size)
        before = None
        while True:
            self._obey()
            while len(self._running) < SLOTS and not self.waiting.empty():
                request = self.waiting.get()
                request.slot = min({*range(SLOTS)} - {each.slot for each in self._running})
                self._running.append(request)
            launched = self._step() if self._running else None
            if before is not None:
                self._deliver(*before)
            elif launched is None:
                self._note("")
                time.sleep(0.001)
            before = launched

    def _obey(self) -> None:
        """Start or stop the profiler, on the thread that runs the steps."""
        while not self.orders.empty():
            options, done = self.orders.get()
            if options is not None and self._profiler is None:
                self._begun.clear()
                self._profiler = torch.profiler.profile(with_stack=options.get("with_stack", False))
                self._profiler.start()
            elif options is None and self._profiler is not None:
                self._profiler.stop()
                name = f"dp0_pp0_tp0_dcp0_ep0_rank0.{time.time_ns()}.pt.trace.json.gz"
                self._profiler.export_chrome_trace(str(self._traces / name))
                self._profiler = None
                if self._clock is not None:
                    first = self._begun[0][0]
                    times = [round(first.elapsed_time(at) * 1e6) if CUDA else at - first for at, _ in self._begun]
                    self._clock.write_text(json.dumps([*zip(times, (phase for _, phase in self._begun), strict=True)]))
            done.set()

    def _note(self, phase: str) -> None:
        """Note when a recorded step begins; on a GPU, when the GPU comes to it."""
        if self._profiler is not None:
            at: Any = torch.cuda.Event(enable_timing=True) if CUDA else time.perf_counter_ns()
            if CUDA:
                at.record()
            self._begun.append((at, phase))

    def _step(self) -> tuple[list[Completion], torch.Tensor, torch.cuda.Event | None]:
        """Launch a step; return its requests, their tokens, and an event after which these are on the host."""
        new = [each for each in self._running if each.length == len(each.prompt)]
        batch, pinned = new or self._running, next(self._pinned)
        tokens = sum(each.length for each in new) or len(batch)
        counts = f"{len(new)}({tokens})_generation_0(0)" if new else f"0(0)_generation_{len(batch)}({tokens})"
        with torch.profiler.record_function(f"execute_context_{counts}"):
            self._note("prefill" if new else "decode")
            slots, scores = self._prefilled(batch, pinned) if new else self._decoded(batch, pinned)
        sampled = _one_by_one(scores) if self._plant == "sampler" else scores.argmax(-1)
        self._model.last[slots] = sampled
        copied = self._download(sampled, pinned[-len(batch) :])
        for each in batch:
            if not new and each.length % BLOCK == 0:
                self._offload(each.slot, each.length)
            each.length += 1
        self._running = [each for each in self._running if each.length < each.end]
        return batch, pinned[-len(batch) :], copied

    def _prefilled(self, batch: list[Completion], pinned: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max(len(each.prompt) for each in batch)
        # Shorter prompts repeat their first token, which changes nothing.
        places = [[max(0, len(each.prompt) - longest + at) for at in range(longest)] for each in batch]
        rows = [[each.prompt[at] for at in row] for each, row in zip(batch, places, strict=True)]
        inputs = _uploaded(pinned, [each.slot for each in batch], *places, *rows)
        if self._copies is not None:
            # The cache of a slot's former request may still be copied.
            torch.cuda.current_stream().wait_stream(self._copies)
        slots = inputs[: len(batch)]
        return slots, self._model(slots, *inputs[len(batch) :].view(2, len(batch), -1))

    def _decoded(self, batch: list[Completion], pinned: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = _uploaded(pinned, [each.slot for each in batch], [each.length - 1 for each in batch])
        slots, places = inputs.view(2, -1)
        if len(batch) not in self._graphs:
            return slots, self._model(slots, places[:, None])
        graph, static, scores = self._graphs[len(batch)]
        static.copy_(inputs)
        graph.replay()
        return slots, scores

    def _offload(self, slot: int, length: int) -> None:
        """Copy a request's cache to the host."""
        if self._plant == "offload":
            self._model.cache[slot, :length].cpu()
        else:
            self._download(self._model.cache[slot, :length], self._saved[slot, :length])

    def _download(self, values: torch.Tensor, here: torch.Tensor) -> torch.cuda.Event | None:
        """Copy values to the host beside the next step, and return an event after which they are there."""
        if self._copies is None:
            here.copy_(values)
            return None
        self._copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copies):
            here.copy_(values, non_blocking=True)
        values.record_stream(self._copies)
        event: torch.cuda.Event = self._copies.record_event()
        return event

    def _deliver(self, batch: list[Completion], tokens: torch.Tensor, copied: torch.cuda.Event | None) -> None:
        """Read the tokens of a step, and answer the requests that are done."""
        if copied is not None:
            copied.synchronize()
        for each, token in zip(batch, tokens.tolist(), strict=True):
            each.tokens.append(token)
            if len(each.prompt) + len(each.tokens) == each.end:
                each.done.set()
        if self._plant == "tokenizer":
            _written_out(len(batch))
        elif self._plant == "gc":
            gc.collect()

    def _captured(self, size: int) -> tuple[Any, ...]:
        inputs = torch.zeros(2 * size, dtype=torch.long, device=DEVICE)
        slots, places = inputs.view(2, -1)
        self._model(slots, places[:, None])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            scores = self._model(slots, places[:, None])
        return graph, inputs, scores


def _uploaded(pinned: torch.Tensor, *parts: list[int]) -> torch.Tensor:
    values = torch.tensor([value for part in parts for value in part])
    return pinned[: len(values)].copy_(values).to(DEVICE, non_blocking=True)


def _one_by_one(scores: torch.Tensor) -> torch.Tensor:
    """Return the best token of each request, after a look at the probabilities of its next best."""
    best = scores.softmax(-1).topk(8)
    for probability in best.values.flatten():
        probability.item()
    return best.indices[:, 0]


def _written_out(tokens: int) -> str:
    """Turn tokens into text slowly."""
    until, text = time.perf_counter() + 0.015, ""
    while time.perf_counter() < until:
        for number in range(1000):
            text = "abcdefghijklmnopqrstuvwxyz"[(tokens + number) % 26]
    return text


def main() -> None:
    """Serve until the process ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--plant", choices=PLANTS)
    parser.add_argument("--clock", type=Path, help="file for the server's own clock at recorded steps")
    options = parser.parse_args()
    scheduler = BatchScheduler(options.traces, options.plant, options.clock)

    class CompletionHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path == "/v1/completions":
                request = Completion(**json.loads(body))
                scheduler.waiting.put(request)
                request.done.wait()
                self._answer({"tokens": request.tokens})
            elif self.path in ("/start_profile", "/stop_profile"):
                done = threading.Event()
                scheduler.orders.put((json.loads(body or b"{}") if self.path == "/start_profile" else None, done))
                done.wait()
                self._answer({})
            else:
                self.send_error(404)

        def _answer(self, content: object) -> None:
            data = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), CompletionHandler)
    scheduler.start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
