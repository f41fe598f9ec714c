"""The scenarios on copies and pinned memory carry over what was published, and their own parts do what they say."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from overlapscope.laboratory import catalog
from overlapscope.laboratory.experiment import Experiment

torch = pytest.importorskip("torch", reason="scenarios are PyTorch programs")

TUTORIAL, ARTICLE = "PyTorch tutorial, GPU not stated", "A800, offload article"

# By hand from the sources' tables, by the names of variants and figures here.
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
}

SIZES: Mapping[str, Mapping[str, Any]] = {
    "copy_matrix": {"elements": 5 * 1024 * 1024},
    "pin_cost": {"elements": 1_000_000},
    "many_small_copies": {"tensors": 1000, "elements": 1000, "recorded_tensors": 100},
    "pin_strategies": {"tensors": 1000, "elements": 1_000_000},
    "pin_threads": {"tensors": 1000, "elements": 1_000_000},
    "d2h_hazard": {"rows": 100, "columns": 999_999},
    "offload_store": {"layers": 30},
    "host_work": {"numbers": 1_000_000},
}

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
}


@functools.cache
def module(name: str) -> Any:
    experiment = catalog.load(catalog.shipped()[name]).experiment
    return sys.modules[experiment.prepare.__module__]


def experiment(name: str) -> Experiment:
    found: Experiment = module(name).EXPERIMENT
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures_are_those_of_the_source(name: str) -> None:
    measured_on, figures = PUBLISHED[name]
    assert experiment(name).published_on == measured_on
    assert {one.name: one.published for one in experiment(name).variants if one.published} == figures


@pytest.mark.parametrize("name", SIZES)
def test_the_paper_scale_has_the_published_sizes(name: str) -> None:
    assert SIZES[name].items() <= experiment(name).sizes["paper"].items()


@pytest.mark.parametrize("name", VARIANTS)
def test_has_every_combination(name: str) -> None:
    assert {variant.name for variant in experiment(name).variants} == VARIANTS[name]


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_variants_differ(name: str) -> None:
    parameters = [variant.parameters for variant in experiment(name).variants]
    assert all(one not in parameters[:number] for number, one in enumerate(parameters))


def test_a_stored_tensor_has_the_published_size() -> None:
    store = module("offload_store")
    stored = torch.empty(store.SHAPE, dtype=torch.float16, device="meta")
    assert round(stored.nbytes / 2**20, 2) == 49.22
    assert round(60 * stored.nbytes / 2**20) == 2953
    assert store.TENSORS_PER_LAYER * experiment("offload_store").sizes["paper"]["layers"] == 60


def test_only_races_may_give_wrong_results() -> None:
    assert {variant.name: variant.wrong_results for variant in experiment("d2h_hazard").variants} == {
        "no_sync": "some",
        "synchronize": "none",
        "source_overwritten": "some",
        "source_kept": "none",
    }
    assert module("d2h_hazard").TRIES == 100


def test_images_are_the_same_every_time() -> None:
    images = module("dataloader").Images(16, seconds=0.0)
    image, label = images[40]
    assert image.shape == (3, 16, 16) and image.dtype == torch.float32
    assert torch.equal(image, module("dataloader").Images(16, seconds=0.0)[40][0])
    assert label == 40


def test_workers_hand_over_the_batches_that_the_main_process_would_make() -> None:
    images = module("dataloader").Images(16, seconds=0.0)
    apart = torch.utils.data.DataLoader(images, batch_size=4, num_workers=1, multiprocessing_context="fork")
    here = torch.utils.data.DataLoader(images, batch_size=4)
    for ours, theirs in zip(next(iter(here)), next(iter(apart)), strict=True):
        assert torch.equal(ours, theirs)


def test_too_little_room_for_batches_is_said_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = module("dataloader")
    monkeypatch.setattr(loader, "HANDED_OVER_IN", tmp_path)
    loader.check_room(0)
    with pytest.raises(RuntimeError, match=r"workers need 1099511627776 MiB in .*--shm-size"):
        loader.check_room(1 << 60)


def test_missing_tensordict_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensordict", None)
    variant = experiment("pin_threads").variants[0]
    with pytest.raises(RuntimeError, match=r"needs tensordict: pip install 'overlapscope\[record\]'"):
        experiment("pin_threads").prepare(**experiment("pin_threads").sizes["small"], **variant.parameters)
