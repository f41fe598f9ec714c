"""Options of inference servers on which the cost of communication depends."""

from __future__ import annotations

from typing import Final

_SPLIT: Final = "Compute one part of the batch while another communicates, or fuse communication with compute"
_LESS: Final = "Or communicate less: fewer GPUs for each replica of the model (tensor parallelism), and more replicas"

_OPTIONS: Final = {
    "vLLM": (
        "`--enable-dbo` (with data and expert parallelism); in `pass_config` of `--compilation-config`, "
        "`fuse_allreduce_rms`, or `enable_sp` with `fuse_gemm_comms`",
        "`--tensor-parallel-size`, `--data-parallel-size`",
    ),
    "SGLang": (
        "`--enable-two-batch-overlap`; `--enable-single-batch-overlap`; `--enable-flashinfer-allreduce-fusion`",
        "`--tp-size`, `--dp-size`, `--enable-dp-attention`",
    ),
    "TensorRT-LLM": ("", "`tensor_parallel_size`, `enable_attention_dp`"),
}
"""Options that overlap or fuse communication, and those that make less of it, by server."""


def expose_less(server: str) -> str:
    """Return advice on exposed communication of a server."""
    split, less = _OPTIONS.get(server, ("", ""))
    return f"{_SPLIT}{split and f': {split}'}.\n{_LESS}{less and f': {less}'}."
