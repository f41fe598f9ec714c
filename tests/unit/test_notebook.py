"""Notebooks as programs: IPython's lines do nothing, and Python's are as they were."""

from __future__ import annotations

import json

import pytest

from overlapscope.recorder.script import compiled_notebook


@pytest.mark.parametrize(
    ("cells", "value"),
    [
        (["%matplotlib inline\nfrom __future__ import annotations\nx = 1"], 1),
        (["!pip install torch\nx = '%d' % (\n2\n)"], "2"),
        (["x = ('loss %d'\n  % 3)"], "loss 3"),
        (["%load_ext x\nx = ('loss %d'\n  % 3)"], "loss 3"),
        (["%load_ext x\nx = '''\n% latex\n!y'''"], "\n% latex\n!y"),
        (["if True:\n    %env A=1\nx = 4", "?x"], 4),
        (["if True:\n    %time x = 4"], 4),
        (["%timeit -n 1 -r3 -q x = 6"], 6),
        (["%timeit\nx = 7"], 7),
        (["x = %time 3 + 4"], 7),
        (["gpus = !nvidia-smi -L\nx = gpus"], []),
        (["%%bash\nls", "%%time\nx = 5"], 5),
    ],
)
def test_only_lines_for_ipython_are_left_out(cells: list[str], value: object) -> None:
    source = json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]}).encode()
    names: dict[str, object] = {}
    exec(compiled_notebook("x.ipynb", source), names)
    assert names["x"] == value
