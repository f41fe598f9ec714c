"""Without any one of the plugins, and without all of them, the rest of the package works: in a copy of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent.name for path in (ROOT / "overlapscope" / "plugins").glob("*/__init__.py"))
COPIED = ("docs", "overlapscope", "scenarios", "tests", "Makefile", "README.md", "pyproject.toml")
SMOKE = ("base/test_extras", "commands/test_plugins")
"""Files of `tests/core` that use all manifests."""
CORE = (*SMOKE, "commands/test_cli", "commands/test_api", "commands/test_doctor", "report/test_golden")
"""Files of `tests/core` that together use every room of the core."""


@pytest.mark.parametrize("gone", [PLUGINS, *([name] for name in PLUGINS)], ids="-".join)
def test_everything_else_works_without_a_plugin(gone: list[str], tmp_path: Path) -> None:
    for part in COPIED:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tmp_path / part)
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    for name in gone:
        shutil.rmtree(tmp_path / "overlapscope" / "plugins" / name)
        shutil.rmtree(tmp_path / "tests" / "plugins" / name, ignore_errors=True)
    files = [f"tests/core/{file}.py" for file in (CORE if gone == PLUGINS else SMOKE)]
    commands = [[sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *files]]
    if gone == PLUGINS:
        commands.append([str(Path(sys.executable).with_name("lint-imports")), "--no-cache"])
    for command in commands:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-5000:]
