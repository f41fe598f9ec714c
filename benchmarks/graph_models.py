"""Models run eagerly and as CUDA graphs: does each kernel of a graph get the module and op that it has without one?

    python -m benchmarks.graph_models record OUT [--only MODEL]...
    python -m benchmarks.graph_models judge OUT benchmarks/measured/graph_models.json
    python -m benchmarks.graph_models page benchmarks/measured/graph_models.json docs/evaluation/graphs.md

`record` needs a GPU. It records each model eagerly, the capture of its graph, and replays, and packs the recordings
into `OUT/NUMBER.tar`. `judge` joins them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tarfile
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.noise import table, wrapped
from overlapscope.plugins.serving.captures import record_captures

ITERATION: Final = "iteration"
PARTS: Final = ("eager", "capture", "replay")
REPEATS: Final = 3
_TAR_BYTES: Final = 14 << 20
_Work = Callable[[], object]
_Event = dict[str, Any]


# -- Models -----------------------------------------------------------------------------------------


def _images(model: Any, batch: int = 8, size: int = 224) -> list[_Work]:
    import torch

    model, images = model.cuda().eval().half(), torch.randn(batch, 3, size, size).cuda().half()
    return [lambda: model(images)]


def _tokens(model: Any, words: int, batch: int = 4, length: int = 128, *, masked: bool = True) -> list[_Work]:
    import torch

    model, tokens = model.cuda().eval().half(), torch.randint(words, (batch, length)).cuda()
    # Without a mask, transformers looks for one in the tokens unless it captures a graph, which runs other kernels.
    mask = torch.zeros(batch, 1, length, length).cuda().half()
    return [lambda: model(tokens, **({"attention_mask": mask} if masked else {}))]


def resnet() -> list[_Work]:
    from torchvision.models import resnet18

    return _images(resnet18())


def mobilenet() -> list[_Work]:
    from torchvision.models import mobilenet_v3_small

    return _images(mobilenet_v3_small())


def vision_transformer() -> list[_Work]:
    import timm

    return _images(timm.create_model("vit_tiny_patch16_224", pretrained=False))


def convnext() -> list[_Work]:
    import timm

    return _images(timm.create_model("convnext_atto", pretrained=False))


def gpt2() -> list[_Work]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return _tokens(GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=512, n_head=8, use_cache=False)), 50257)


def llama() -> list[_Work]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    )
    return _tokens(LlamaForCausalLM(config), 4096)


def bert() -> list[_Work]:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536)
    return _tokens(BertModel(config), 30522)


def t5() -> list[_Work]:
    from transformers import T5Config, T5EncoderModel

    return _tokens(T5EncoderModel(T5Config(d_model=256, d_kv=32, d_ff=512, num_layers=6)), 32128)


def recurrent() -> list[_Work]:
    import torch
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.cells = nn.Embedding(1000, 256), nn.LSTM(256, 256, num_layers=2, batch_first=True)
            self.head = nn.Linear(256, 1000)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.head(self.cells(self.words(tokens))[0])
            return result

    return _tokens(Recurrent(), 1000, length=32, masked=False)


def served() -> list[_Work]:
    import torch

    from tests.programs.server import ServedModel

    model = ServedModel().cuda().eval()
    inputs = [torch.zeros(shape, dtype=torch.long).cuda() for shape in ((8,), (8, 1))]
    return [lambda: model(*inputs)]


def training() -> list[_Work]:
    import torch
    from torch import nn

    layers = [
        layer
        for width, out in ((3, 32), (32, 64), (64, 64))
        for layer in (nn.Conv2d(width, out, 3), nn.BatchNorm2d(out), nn.ReLU())
    ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    images, labels = torch.randn(16, 3, 64, 64).cuda(), torch.zeros(16, dtype=torch.long).cuda()

    def step() -> None:
        with torch.enable_grad():
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    return [step]


def streams() -> list[_Work]:
    """Return work of which two branches run side by side."""
    import torch
    from torch import nn

    left, right = (nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6))).cuda() for _ in range(2))
    inputs, side = torch.randn(512, 1024).cuda(), torch.cuda.Stream()

    def work() -> torch.Tensor:
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            other = right(inputs.relu())
        result: torch.Tensor = left(inputs)
        here.wait_stream(side)
        result += other
        return result

    return [work]


def pieces() -> list[_Work]:
    """Return the layers of a model, of which each becomes a graph, as vLLM does for prefill."""
    import torch
    from torch import nn

    layers = [nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True).cuda().eval() for _ in range(6)]
    inputs = torch.randn(4, 128, 512).cuda()
    return [lambda layer=layer: layer(inputs) for layer in layers]  # type: ignore[misc]


MODELS: Final = (resnet, mobilenet, vision_transformer, convnext, gpt2, llama, bert, recurrent, served, training)
FURTHER: Final = (t5, streams, pieces)


# -- Recording --------------------------------------------------------------------------------------


@contextmanager
def _recorded(path: Path) -> Iterator[None]:
    import torch

    with torch.profiler.profile(with_stack=True) as profiler:
        yield
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))


def _run(work: Sequence[_Work]) -> None:
    import torch

    with torch.profiler.record_function(ITERATION):
        for piece in work:
            piece()


def record_model(model: Callable[[], list[_Work]], folder: Path) -> None:
    """Record a model eagerly, the capture of its graphs, and replays of these."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        work, side = model(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(4):
                _run(work)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        with _recorded(folder / "eager.json.gz"):
            for _ in range(REPEATS):
                _run(work)
        graphs = []
        with _recorded(folder / "capture.json.gz"):
            for piece in work:
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    piece()
        stop = record_captures(str(folder / "captures"))
        for piece in work:
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                piece()
        stop()
        replays = [graph.replay for graph in graphs]
        _run(replays)
        torch.cuda.synchronize()
        with _recorded(folder / "replay.json.gz"):
            for _ in range(REPEATS):
                _run(replays)


def record(out: Path, only: list[str]) -> None:
    """Record all models, print what the recordings hold, and pack them."""
    import torch

    out.mkdir(parents=True, exist_ok=True)
    print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name())
    held: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        recorded = []
        for model in (*MODELS, *FURTHER):
            if only and model.__name__ not in only:
                continue
            folder = Path(name) / model.__name__
            folder.mkdir()
            try:
                record_model(model, folder)
                seen: dict[str, Any] = {part: _held(_events(folder / f"{part}.json.gz")) for part in PARTS}
                captures = len([*folder.glob("captures/*")])
                held[model.__name__] = seen | {"by hand": by_hand(folder), "captures": captures}
                recorded.append(folder)
            except Exception as error:
                held[model.__name__] = {"failed": f"{type(error).__name__}: {error}"}
                traceback.print_exc()
            print(model.__name__, json.dumps(held[model.__name__]), flush=True)
        (out / "held.json").write_text(json.dumps(held, indent=1))
        _pack(recorded, out)


def _pack(folders: list[Path], out: Path) -> None:
    """Write the recordings of models into as few archives as keep below a size."""
    files, size, number = list[tuple[Path, str]](), 0, 0
    every = [
        (path, f"{folder.name}/{path.relative_to(folder)}")
        for folder in folders
        for path in sorted(folder.rglob("*.gz"))
    ]
    for path, name in [*every, (None, "")]:
        if path is None or (files and size + path.stat().st_size > _TAR_BYTES):
            with tarfile.open(out / f"{number}.tar", "w") as archive:
                for each, inside in files:
                    archive.add(each, inside)
            files, size, number = [], 0, number + 1
        if path is not None:
            files.append((path, name))
            size += path.stat().st_size


# -- By hand: what the recordings hold, and a join that knows only order ------------------------------


def _events(path: Path) -> list[_Event]:
    with gzip.open(path) as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def _held(events: list[_Event]) -> dict[str, Any]:
    """Return categories, calls into the runtime, and the arguments of a kernel."""
    kernels = [event for event in events if event["cat"] == "kernel"]
    return {
        "categories": Counter(event["cat"] for event in events),
        "calls": Counter(event["name"] for event in events if event["cat"] in _CALLS),
        "kernel": kernels[0]["args"] if kernels else None,
        "streams": sorted({event["args"]["stream"] for event in kernels}),
    }


_CALLS: Final = ("cuda_runtime", "cuda_driver")
_WORK: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES: Final = ("LaunchKernel", "Memcpy", "Memset")


class _Places:
    """Modules and ops of a recording."""

    def __init__(self, events: list[_Event]) -> None:
        self._tables: list[tuple[list[str], Any, Any, Any]] = []
        for category, prefix in (("python_function", "nn.Module: "), ("cpu_op", "")):
            those = [event for event in events if event["cat"] == category and event["name"].startswith(prefix)]
            thread, start, length = (np.array([event[key] for event in those]) for key in ("tid", "ts", "dur"))
            self._tables.append(([event["name"] for event in those], thread, start, length))

    def around(self, at: _Event) -> tuple[str, ...]:
        """Return the innermost module and op around an event; empty for none."""
        found = []
        for names, thread, start, length in self._tables:
            inside = np.flatnonzero((thread == at["tid"]) & (start <= at["ts"]) & (at["ts"] < start + length))
            found.append(names[inside[np.argmin(length[inside])]] if len(inside) else "")
        return tuple(found)


def eager_ops(eager: list[_Event]) -> Counter[tuple[str, ...]]:
    """Return kernel, module and op of what the first iteration launched, and how often."""
    launches = {event["args"]["correlation"]: event for event in eager if event["cat"] in _CALLS}
    iterations = [event for event in eager if event["cat"] == "user_annotation" and event["name"] == ITERATION]
    first, places = min(iterations, key=_begin), _Places(eager)
    return Counter(
        (op["name"], *places.around(call))
        for op in eager
        if op["cat"] in _WORK
        and (call := launches.get(op["args"]["correlation"])) is not None
        and first["ts"] <= call["ts"] < first["ts"] + first["dur"]
    )


def _begin(event: _Event) -> float:
    return float(event["ts"])


def by_hand(folder: Path) -> dict[str, Any]:
    """Return the share of time whose kernel, module and op are those of the eager iteration, joining by order alone."""
    eager, capture, replay = (_events(folder / f"{part}.json.gz") for part in PARTS)
    edges = [sorted(_begin(event) for event in capture if word in event["name"]) for word in ("BeginC", "EndC")]
    calls = [event for event in capture if event["cat"] in _CALLS and any(name in event["name"] for name in _LAUNCHES)]
    inside = [call for call in calls if any(a < call["ts"] < b for a, b in zip(*edges, strict=True))]
    places = _Places(capture)
    captured = [places.around(call) for call in sorted(inside, key=_begin)]
    truth = eager_ops(eager)
    graphs = [event["args"]["correlation"] for event in replay if "GraphLaunch" in event["name"]]
    graphs = graphs[: len(graphs) // REPEATS]
    replayed = [event for event in replay if event["cat"] in _WORK and event["args"]["correlation"] in graphs]
    joined = captured if len(captured) == len(replayed) else [()] * len(replayed)
    named = [(op["name"], *place) for op, place in zip(sorted(replayed, key=_begin), joined, strict=True)]
    same, total = _same(named, [op["dur"] for op in sorted(replayed, key=_begin)], truth)
    return {
        "eager": truth.total(),
        "captured": len(captured),
        "replayed": len(replayed),
        "graphs": len(graphs),
        "same_pct": round(100 * same / total, 3) if total else None,
    }


def _same(
    ops: Sequence[tuple[str, ...]], lengths: Sequence[float], truth: Counter[tuple[str, ...]]
) -> tuple[float, float]:
    """Return the time of ops that are in the truth as well, and of all."""
    left, same = Counter(truth), 0.0
    for op, length in zip(ops, lengths, strict=True):
        if left[op]:
            left[op] -= 1
            same += length
    return same, sum(lengths)


# -- By overlapscope -----------------------------------------------------------------------------------


def judge(out: Path, target: Path) -> None:
    """Join all recordings, and write how much of the replays' time has the module and op of the eager iteration."""
    rows = []
    held = json.loads((out / "held.json").read_text())
    with tempfile.TemporaryDirectory() as name:
        for archive in sorted(out.glob("*.tar")):
            with tarfile.open(archive) as packed:
                packed.extractall(name, filter="data")
        for model in (*MODELS, *FURTHER):
            folder = Path(name) / model.__name__
            if folder.is_dir():
                # Modules of separate captures are numbered separately.
                captures = folder / ("capture.json.gz" if model is pieces else "captures")
                rows.append({"model": model.__name__, **_joined(folder, captures), **held[model.__name__]["by hand"]})
    target.write_text(json.dumps(rows, indent=1) + "\n")


def _joined(folder: Path, captures: Path) -> dict[str, float]:
    from overlapscope.analysis.graphs import graph_use, origins
    from overlapscope.reading import load

    trace = load(folder / "replay.json.gz", captures=captures, steps_by=ITERATION, cache=False)
    found, ops = origins(trace), trace.gpu_ops
    use = graph_use(trace, ops)
    assert use is not None

    def name(number: int) -> str:
        return trace.names[number] if number >= 0 else ""

    named = [
        (ops.name(row), name(module), name(op))
        for row, module, op in zip(found.row.tolist(), found.module.tolist(), found.op.tolist(), strict=True)
    ]
    truth = eager_ops(_events(folder / "eager.json.gz"))
    every = Counter({op: REPEATS * count for op, count in truth.items()})
    same_ns, _ = _same(named, (ops.end_ns - ops.start_ns)[found.row].tolist(), every)
    return {
        "ops": use.count,
        "known_pct": 100 * use.known_time_ns / use.time_ns,
        "joined_pct": 100 * same_ns / use.time_ns,
    }


_PAGE: Final = """\
# Graphs

**Question:** Do the kernels of a CUDA graph get the module and op that they have without a graph? {count} models ran
eagerly and as graphs on an NVIDIA H200 with torch 2.11.0+cu130. Their captures were recorded as by
`OVERLAPSCOPE_CAPTURES`, and three replays were joined with them. An op is right if the eager iteration launched as many
of the same kernel in the same module (such as `nn.Module: Linear_3`) and op.

**{right} of {count} models** have the right module and op for at least 99% of the time of their graphs' ops.

{table}

torch 2.11 records no numbers of a graph's nodes, so all were joined by order. The order within branches is not known:
of `streams`, with two branches side by side, nearly all stays unknown, and nothing is wrong. `recurrent` has branches
too, but a single op of cuDNN launches all of them. `pieces` launches a graph for each of six equal layers.

On GPUs of AMD, calls in a capture state their kernels, so names can confirm the order. In TraceLens' recordings of
vLLM and SGLang on MI300X, they do for all of 421 and 544 kernels.

`python -m benchmarks.graph_models` measures, and writes this page.
"""


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page of the evaluation."""
    models = {model.__name__ for model in MODELS}
    lines = [
        (
            row["model"] if row["model"] in models else f"{row['model']} (further)",
            f"{row['eager']:,}",
            f"{row['graphs']:,}",
            f"{row['known_pct']:.1f}%",
            f"{row['joined_pct']:.1f}%",
        )
        for row in rows
    ]
    count = len(lines)
    right = sum(row["joined_pct"] >= 99 for row in rows)
    head = ("model", "ops", "graphs", "known", "same module and op")
    return wrapped(_PAGE.format(count=count, right=right, table=table(head, lines, words=1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--only", action="append", default=[])
    judging = commands.add_parser("judge")
    judging.add_argument("out", type=Path)
    judging.add_argument("target", type=Path)
    writing = commands.add_parser("page")
    writing.add_argument("measured", type=Path)
    writing.add_argument("page", type=Path)
    options = parser.parse_args()
    if options.command == "record":
        record(options.out, options.only)
    elif options.command == "judge":
        judge(options.out, options.target)
    else:
        options.page.write_text(page(json.loads(options.measured.read_text())))


if __name__ == "__main__":
    main()
