"""Tests that the scenarios on streams, graphs and offloading compute the right results."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from overlapscope.plugins.laboratory.experiment import Program
from tests.plugins.laboratory.scenario_files import experiment, module

torch = pytest.importorskip("torch", reason="scenarios are PyTorch programs")


SCENARIOS = (
    *("offload_pipeline", "chunked_streams", "cuda_graph", "stream_matmul", "forward_backward", "kv_offload"),
    *("activation_offload", "async_checkpoint", "fsdp_offload", "ddp_training"),
)
COUNTED = [
    (name, variant.name)
    for name in SCENARIOS
    for variant in experiment(name).variants
    if variant.wrong_results is not None
]


def test_chunks_sweep_over_the_published_numbers_of_streams() -> None:
    variants = experiment("chunked_streams").variants
    assert {variant.parameters["streams"] for variant in variants if variant.parameters["order"] == "breadth"} == {
        1,
        2,
        4,
        8,
        16,
    }
    assert [variant.name for variant in variants if variant.parameters["order"] == "depth"] == ["depth_first"]


@pytest.mark.parametrize("name", ["fsdp_offload", "ddp_training"])
def test_jobs_run_on_two_gpus(name: str) -> None:
    assert experiment(name).gpus == 2


def test_only_a_missing_wait_may_give_wrong_results() -> None:
    """The small model has no expected result: it depends on whether host or GPU is ahead."""
    some = {
        variant.name for name in SCENARIOS for variant in experiment(name).variants if variant.wrong_results == "some"
    }
    assert some == {"large_missing_wait"}
    (silent,) = (variant for variant in experiment("forward_backward").variants if variant.wrong_results is None)
    assert silent.name == "many_small_missing_wait"


# -- results of the programs --------------------------------------------------------------------


def test_a_layer_of_the_pipeline_has_the_published_size_and_work() -> None:
    pipeline = module("offload_pipeline")
    assert pipeline.SHAPE == (1, 16800, 1536)
    assert pipeline.DOUBLINGS == 20
    assert round(torch.empty(pipeline.SHAPE, dtype=torch.float16, device="meta").nbytes / 2**20, 2) == 49.22


def test_the_pipelines_results_are_exact_and_tell_layers_apart() -> None:
    pipeline = module("offload_pipeline")
    values = pipeline.layer_values(30)
    layers = torch.tensor(values, dtype=torch.float16)
    pipeline.compute(layers)
    assert layers.tolist() == [value * 2**20 for value in values]
    assert len(set(layers.tolist())) == 30


def test_a_chunk_adds_one_to_within_rounding() -> None:
    chunked = module("chunked_streams")
    elements = 1 << 20
    index = torch.arange(elements, dtype=torch.float32)
    source, values, sine, cosine, result = (torch.full((elements,), 7.0) for _ in range(5))
    chunk = chunked.Chunk(source.zero_(), values, index, sine, cosine, result)
    chunk.upload()
    chunk.compute()
    chunk.download()
    assert float((result - 1).abs().max()) <= chunked.ROUNDING


def test_attention_over_equal_positions_gives_what_they_hold() -> None:
    """So that a layer that is given another layer's cache is sure to compute something else."""
    width, heads = 8, 2
    nothing = torch.zeros(width, width)
    layer = module("kv_offload").LayerWeights(torch.randn(width, width), torch.eye(width), nothing, nothing)
    hidden, values = torch.randn(3, width), torch.randn(2, 3, heads, 1, width // heads)
    decoded = layer.decode(hidden, values.expand(-1, -1, -1, 5, -1).contiguous())
    torch.testing.assert_close(decoded, hidden + values[1].reshape(3, width))


@pytest.fixture
def gpu_memory_given_back() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("gpu_memory_given_back")
@pytest.mark.parametrize(("name", "variant"), COUNTED)
def test_results_are_right_unless_a_wait_is_missing(name: str, variant: str) -> None:
    (chosen,) = (item for item in experiment(name).variants if item.name == variant)
    program = experiment(name).prepare(**experiment(name).sizes["small"], **chosen.parameters)
    assert isinstance(program, Program) and program.count_wrong is not None
    for _ in range(3):
        program.step()
    counted = program.count_wrong()
    assert counted.tries > 0
    assert (counted.wrong > 0) == (chosen.wrong_results == "some")
