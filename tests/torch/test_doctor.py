"""`overlapscope doctor` as a user runs it, where PyTorch is there, broken or not there at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import torch

from overlapscope.commands.schema import schema_of
from overlapscope.plugin import built_in

CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from overlapscope.commands import main; sys.exit(main())"


def doctor(code: int, place: Path, **environment: str) -> dict[str, Any]:
    """Return its JSON output in a process that looks for modules in `place` first."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, place, "doctor", "--format", "json"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")
    document: dict[str, Any] = json.loads(done.stdout)
    jsonschema.validate(document, schema_of("doctor"))
    return document


def statuses(diagnosis: dict[str, Any]) -> dict[str, str]:
    return {check["id"]: check["status"] for check in diagnosis["checks"]}


def test_it_names_the_versions_and_every_part(tmp_path: Path) -> None:
    diagnosis = doctor(0, tmp_path, DISPLAY="", WAYLAND_DISPLAY="", CUDA_VISIBLE_DEVICES="")
    assert diagnosis["kind"] == "doctor" and diagnosis["versions"]["torch"] == torch.__version__
    assert diagnosis["gpus"] == []
    assert statuses(diagnosis) == {
        "record": "ok",
        "gpu": "missing",
        "dashboard": "ok",
        "browser": "missing" if sys.platform == "linux" else "ok",
        "cluster": "ok",
        "history": "ok",
        "reading": "ok" if shutil.which("cc") else "missing",
        "cache": "ok",
    } | {plugin.name: "ok" for plugin in built_in() if plugin.extra}


def test_a_torch_that_cannot_be_imported_and_settings_that_make_no_sense_are_broken(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    diagnosis = doctor(1, tmp_path, OVERLAPSCOPE_CACHE_SIZE="lots")
    assert statuses(diagnosis)["record"] == statuses(diagnosis)["cache"] == "broken"
    assert "libcudart.so.13: cannot open" in diagnosis["checks"][0]["detail"]
    assert diagnosis["versions"]["torch"] is None
