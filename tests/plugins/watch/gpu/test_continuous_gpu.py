"""Continuous watching of a training on the GPU: figures are right although the host runs ahead."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support import forked

Store = pytest.importorskip("overlapscope.plugins.history.store").Store
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TRAINING = """
import time, torch
from pathlib import Path
from overlapscope.plugins.watch import api, continuous

continuous.MAX_SHARE_OF_TIME = 1e9
def log(figures):
    Path("figures.txt").write_text(" ".join(figures.scalars))

api.watch(every="1s", history=Path("history.sqlite"), job="train", log=log)
model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(4))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(4096, 4096, pin_memory=True)
began, steps = time.monotonic(), 0
while len(list(Path().glob("watched/*/*/report.html"))) < 2:
    assert time.monotonic() < began + 120
    optimizer.zero_grad()
    loss = model(batch.cuda(non_blocking=True)).square().mean()
    loss.backward()
    optimizer.step()
    steps += 1
    if steps % 10 == 0:
        loss.item()
print(1e9 * (time.monotonic() - began) / steps)
"""


def test_figures_are_of_the_plain_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    done = forked.run(["train.py"], tmp_path, environment={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    with Store.open(tmp_path / "history.sqlite", read_only=True) as history:
        first, *_ = history.points("step_time")
        assert history.points("efficiency_pct")
    mean_ns = float(done.stdout)
    assert 0.5 < first.value / mean_ns < 1.5, "the host's clock alone would say a tenth"
    assert "efficiency_pct" in (tmp_path / "figures.txt").read_text().split()
