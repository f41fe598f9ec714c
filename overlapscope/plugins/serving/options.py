"""Options of inference servers on which the costs of findings depend."""

from __future__ import annotations

from typing import Final, NamedTuple

_SPLIT: Final = "Compute one part of the batch while another communicates, or fuse communication with compute"
_LESS: Final = "Or communicate less: fewer {gpu}s for each replica of the model (tensor parallelism), and more replicas"
_LAUNCH: Final = "Launch each step as a {graph}, whatever the size of its batch"
_PADDED: Final = (
    "A batch for which no graph was captured is launched op by op. Servers pad a batch to the next captured size, so "
    "the largest of these must not be smaller than the batches that are served."
)
_PREPARE: Final = "Run less Python between steps, or prepare a step while the {gpu} runs the one before"
_ELSEWHERE: Final = "Tokenizing, detokenizing and logging fit another process. {graph}s run none of the model's Python."
_READ: Final = "Sample on the {gpu}, and read results from pinned memory once the next step has been launched"
_WAITS: Final = ".item(), .cpu(), .tolist() and tensor[mask] wait for the {gpu}, also in logits processors and metrics."


class _Options(NamedTuple):
    """Options of a server by what they do; empty where there is none."""

    split: str = ""
    """Overlap or fuse communication with compute."""
    less: str = ""
    """Communicate less."""
    ahead: str = ""
    """Launch a step before the tokens of the one before are read."""
    graphs: str = ""
    """Capture graphs of more batches."""


_OPTIONS: Final = {
    "vLLM": _Options(
        "`--enable-dbo` (with data and expert parallelism); in `pass_config` of `--compilation-config`, "
        "`fuse_allreduce_rms`, or `enable_sp` with `fuse_gemm_comms`",
        "`--tensor-parallel-size`, `--data-parallel-size`",
        "`--async-scheduling`",
        "no `--enforce-eager`; `cudagraph_capture_sizes` in `--compilation-config`",
    ),
    "SGLang": _Options(
        "`--enable-two-batch-overlap`; `--enable-single-batch-overlap`; `--enable-flashinfer-allreduce-fusion`",
        "`--tp-size`, `--dp-size`, `--enable-dp-attention`",
        "no `--disable-overlap-schedule`",
        "no `--disable-cuda-graph`; `--cuda-graph-bs-decode`, `--cuda-graph-max-bs-decode` (until 2026 without "
        "`-decode`)",
    ),
    "TensorRT-LLM": _Options(
        less="`tensor_parallel_size`, `enable_attention_dp`",
        ahead="no `disable_overlap_scheduler`",
        graphs="`cuda_graph_config` with `batch_sizes` and `enable_padding`",
    ),
}


def expose_less(server: str) -> str:
    """Return advice on exposed communication of a server."""
    split, less = _named(server, "split"), _named(server, "less")
    return f"{_SPLIT}{split}.\n{_LESS}{less}."


def launch_graphs(server: str) -> str:
    """Return advice on launches that keep a server's {gpu} waiting."""
    return f"{_LAUNCH}{_named(server, 'graphs')}.\n{_PADDED}"


def schedule_ahead(server: str) -> str:
    """Return advice on Python between a server's steps."""
    return f"{_PREPARE}{_named(server, 'ahead')}.\n{_ELSEWHERE}"


def read_late(server: str) -> str:
    """Return advice on a server that waits for its {gpu}."""
    return f"{_READ}{_named(server, 'ahead')}.\n{_WAITS}"


def _named(server: str, what: str) -> str:
    options = getattr(_OPTIONS.get(server, _Options()), what)
    return f": {options}" if options else ""
