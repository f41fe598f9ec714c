"""Tests of the parts of scenarios on copies and pinned memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.plugins.laboratory.scenario_files import experiment, module

torch = pytest.importorskip("torch", reason="scenarios are PyTorch programs")


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
    images = module("dataloader").DecodedImages(16, seconds=0.0)
    image, label = images[40]
    assert image.shape == (3, 16, 16) and image.dtype == torch.float32
    assert torch.equal(image, module("dataloader").DecodedImages(16, seconds=0.0)[40][0])
    assert label == 40


def test_workers_hand_over_the_batches_that_the_main_process_would_make() -> None:
    images = module("dataloader").DecodedImages(16, seconds=0.0)
    apart = torch.utils.data.DataLoader(images, batch_size=4, num_workers=1, multiprocessing_context="fork")
    here = torch.utils.data.DataLoader(images, batch_size=4)
    for ours, theirs in zip(next(iter(here)), next(iter(apart)), strict=True):
        assert torch.equal(ours, theirs)


def test_too_little_room_for_batches_is_reported_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = module("dataloader")
    monkeypatch.setattr(loader, "HANDED_OVER_IN", tmp_path)
    loader.check_room(0)
    with pytest.raises(RuntimeError, match=r"workers need 1099511627776 MiB in .*--shm-size"):
        loader.check_room(1 << 60)


def test_missing_tensordict_is_reported_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensordict", None)
    variant = experiment("pin_threads").variants[0]
    with pytest.raises(RuntimeError, match=r"needs tensordict. Install it with `pip install .*\[record\]"):
        experiment("pin_threads").prepare(**experiment("pin_threads").sizes["small"], **variant.parameters)
