"""Sample recordings that come with overlapscope."""

from __future__ import annotations

from pathlib import Path

SAMPLES = Path(__file__).parents[1] / "samples"
"""Directory of the samples."""

WHAT_THEY_ARE = {
    "training_naive.json.gz": "training that copies each batch from pageable memory",
    "training_prefetched.json.gz": "the same with pinned batches, prefetched on their own CUDA stream",
    "offload_one_stream.json.gz": "an offload pipeline: copy in, compute and copy out on one CUDA stream",
    "offload_three_streams.json.gz": "the same on three CUDA streams",
    "small_transformer.json.gz": "kernels so small that the host cannot launch them fast enough",
    "data_loading.json.gz": "a GPU that waits for its DataLoader",
    "host_sync.json.gz": "a host that waits for a copy in every step, while the GPU still has work",
    "ddp": "two ranks of a training with DistributedDataParallel",
    "laboratory": "what the experiments of `overlapscope scenarios` measured on an H200",
}
"""Content of each sample file or directory."""
