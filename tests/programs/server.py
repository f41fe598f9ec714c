"""A small inference server, which batches requests for a transformer, and has the marks and endpoints of vLLM.

    python -m tests.programs.server --traces DIR [--port N] [--plant CAUSE] [--clock FILE]

It prints its address, and serves until it is ended. `POST /v1/completions` takes `{"prompt": [1, 2], "max_tokens": 8}`,
and `POST /start_profile` and `/stop_profile` record. One thread is the scheduler: each of its steps runs the prompts
that wait (prefill), or one token of each request (decode) from a cache of keys and values, on a GPU from a CUDA graph.
"""

from __future__ import annotations

import argparse
import gc
import json
import queue
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
WIDTH, HEADS, LAYERS, WORDS = (512, 8, 8, 4096) if CUDA else (32, 4, 2, 64)
SLOTS, LENGTH = 8, 256
"""Maximum number of requests at a time, and of tokens of each."""
PLANTS = ("tokenizer", "sampler", "offload", "graph", "gc")
"""Causes that can be planted: the scheduler's thread tokenizes slowly, sampling waits for the GPU request by request,
the cache is copied to pageable memory in each step, a batch of three has no graph, or each step collects garbage."""


class Completion(NamedTuple):
    """A prompt, the number of tokens to generate, and where the answer goes."""

    prompt: list[int]
    max_tokens: int
    answer: queue.Queue[list[int]]


class ServedModel(nn.Module):
    """A transformer with one slot of its cache for each request."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.inputs = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.outputs = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)
        cache = torch.zeros(LAYERS, 2, SLOTS, HEADS, LENGTH, WIDTH // HEADS)
        self.cache: torch.Tensor
        self.register_buffer("cache", cache)

    def forward(self, tokens: torch.Tensor, slots: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return the next token of each request, of `tokens` (request, token) at the places `at` of the same shape."""
        seen = torch.arange(LENGTH, device=tokens.device) <= at[:, None, :, None]
        x = self.words(tokens) + self.places(at)
        for norm, inside, out, cache in zip(self.norms, self.inputs, self.outputs, self.cache, strict=True):
            query, key, value = inside(norm(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            cache[0][slots[:, None], :, at] = key.transpose(1, 2)
            cache[1][slots[:, None], :, at] = value.transpose(1, 2)
            mixed = functional.scaled_dot_product_attention(query, cache[0][slots], cache[1][slots], seen)
            x = x + out(mixed.transpose(1, 2).flatten(2))
        result: torch.Tensor = self.head(x[:, -1]).argmax(-1)
        return result


class RunningCompletion:
    """A request that has a slot."""

    def __init__(self, request: Completion, slot: int) -> None:
        self.request, self.slot, self.tokens = request, slot, list(request.prompt)

    @property
    def is_done(self) -> bool:
        return len(self.tokens) >= min(LENGTH, len(self.request.prompt) + self.request.max_tokens)


class BatchScheduler(threading.Thread):
    """Runs steps while there are requests."""

    def __init__(self, traces: Path, plant: str | None, clock: Path | None) -> None:
        super().__init__(name="scheduler", daemon=True)
        self.waiting: queue.Queue[Completion] = queue.Queue()
        self.orders: queue.Queue[tuple[str, threading.Event]] = queue.Queue()
        self._traces, self._plant, self._clock = traces, plant, clock
        self._profiler: torch.profiler.profile | None = None
        self._begun: list[tuple[int, str]] = []
        """When each recorded step began, and its phase; an empty phase while there are no requests."""
        self._running: list[RunningCompletion] = []
        self._model = ServedModel().to(DEVICE).eval()
        self._graphs: dict[int, tuple[Any, ...]] = {}

    @torch.inference_mode()
    def run(self) -> None:
        if CUDA:
            for size in range(1, SLOTS + 1):
                if not (self._plant == "graph" and size == 3):
                    self._graphs[size] = self._captured(size)
        while True:
            self._obey()
            self._admit()
            if not self._running:
                self._begun.append((time.perf_counter_ns(), ""))
                time.sleep(0.001)
                continue
            new = [each for each in self._running if len(each.tokens) == len(each.request.prompt)]
            if new:
                for each in new:
                    self._step([each], is_prefill=True)
            else:
                self._step(self._running, is_prefill=False)
            for each in [each for each in self._running if each.is_done]:
                self._running.remove(each)
                each.request.answer.put(each.tokens[len(each.request.prompt) :])

    def _obey(self) -> None:
        """Start or stop the profiler, on the thread that runs the steps."""
        while not self.orders.empty():
            order, done = self.orders.get()
            if order == "start" and self._profiler is None:
                self._profiler = torch.profiler.profile()
                self._profiler.start()
                self._begun.clear()
            elif order == "stop" and self._profiler is not None:
                self._profiler.stop()
                name = f"dp0_pp0_tp0_dcp0_ep0_rank0.{time.time_ns()}.pt.trace.json.gz"
                self._profiler.export_chrome_trace(str(self._traces / name))
                self._profiler = None
                if self._clock is not None:
                    self._clock.write_text(json.dumps(self._begun))
            done.set()

    def _admit(self) -> None:
        while len(self._running) < SLOTS and not self.waiting.empty():
            used = {each.slot for each in self._running}
            self._running.append(RunningCompletion(self.waiting.get(), min({*range(SLOTS)} - used)))

    def _step(self, batch: list[RunningCompletion], *, is_prefill: bool) -> None:
        counts = [len(each.tokens) if is_prefill else 1 for each in batch]
        prefill, decode = ((len(batch), sum(counts)), (0, 0)) if is_prefill else ((0, 0), (len(batch), sum(counts)))
        self._begun.append((time.perf_counter_ns(), "prefill" if is_prefill else "decode"))
        with torch.profiler.record_function(
            f"execute_context_{prefill[0]}({prefill[1]})_generation_{decode[0]}({decode[1]})"
        ):
            rows = [each.tokens[-count:] for each, count in zip(batch, counts, strict=True)]
            places = [[*range(len(each.tokens))][-count:] for each, count in zip(batch, counts, strict=True)]
            inputs = [torch.tensor(values) for values in (rows, [each.slot for each in batch], places)]
            if CUDA:
                inputs = [values.pin_memory().to(DEVICE, non_blocking=True) for values in inputs]
            result = self._model(*inputs) if is_prefill or len(batch) not in self._graphs else self._replayed(*inputs)
            if self._plant == "offload":
                self._model.cache[:, :, batch[0].slot].cpu()
        sampled = [row.item() for row in result] if self._plant == "sampler" else result.tolist()
        for each, token in zip(batch, sampled, strict=True):
            each.tokens.append(int(token))
        if self._plant == "tokenizer":
            _tokenize(sum(map(len, rows)))
        elif self._plant == "gc":
            gc.collect()

    def _captured(self, size: int) -> tuple[Any, ...]:
        inputs = [torch.zeros(shape, dtype=torch.long, device=DEVICE) for shape in ((size, 1), (size,), (size, 1))]
        self._model(*inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = self._model(*inputs)
        return graph, inputs, result

    def _replayed(self, *inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor
        graph, static, result = self._graphs[len(inputs[0])]
        for place, values in zip(static, inputs, strict=True):
            place.copy_(values, non_blocking=True)
        graph.replay()
        return result


def _tokenize(tokens: int) -> list[str]:
    """Turn tokens into text slowly."""
    until = time.perf_counter() + 0.004
    text = []
    while time.perf_counter() < until:
        text = [chr(97 + number % 26) for number in range(tokens)]
    return text


def serve(port: int, traces: Path, plant: str | None, clock: Path | None) -> None:
    """Serve until the process ends."""
    scheduler = BatchScheduler(traces, plant, clock)

    class CompletionHandler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path == "/v1/completions":
                asked = json.loads(body)
                request = Completion(asked["prompt"], asked["max_tokens"], queue.Queue())
                scheduler.waiting.put(request)
                self._answer(200, {"tokens": request.answer.get()})
            elif self.path in ("/start_profile", "/stop_profile"):
                done = threading.Event()
                scheduler.orders.put((self.path[1:].partition("_")[0], done))
                done.wait()
                self._answer(200, {})
            else:
                self._answer(404, {"detail": "Not Found"})

        def _answer(self, status: int, content: object) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), CompletionHandler)
    scheduler.start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--plant", choices=PLANTS)
    parser.add_argument(
        "--clock", type=Path, help="file for the beginnings of recorded steps by the server's own clock"
    )
    options = parser.parse_args()
    serve(options.port, options.traces, options.plant, options.clock)


if __name__ == "__main__":
    main()
