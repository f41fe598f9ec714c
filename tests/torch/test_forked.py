"""Tests that programs forked with torch loaded, which most tests of this room use, behave as under `python`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked

pytest.importorskip("torch", reason="has torch loaded")


@pytest.mark.parametrize(
    "text",
    [
        "import os, sys; print(__name__, __file__, sys.argv, sys.path[:2], os.getcwd(), repr(sys.stdin.read()))\n"
        "print(sys.begun_by, sys.orig_argv[1:])",
        "import sys; print('torch' in sys.modules); import torch; print(torch.__spec__.origin, torch.ones(2) + 1)\n"
        "print(*sorted(one for one in sys.modules if one.startswith('torch')))",
        "import sys; sys.exit('a text')",
        "import atexit, sys; atexit.register(print, 'exit'); sys.exit(3)",
        "import sys, threading, time\ndef late(): time.sleep(0.1); print('late')\n"
        "threading.Thread(target=late).start(); sys.exit(300)",
        "import os, sys\nif os.fork() == 0: sys.exit(5)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))",
        "def f(): 1 / 0\ntry: f()\nexcept ZeroDivisionError as e: raise ValueError('two\\nlines') from e",
        "import sys; sys.excepthook = lambda kind, value, trace: print(kind, value, trace.tb_lineno); 1 / 0",
        "raise KeyboardInterrupt",
        "import os, signal; print('out', flush=True); os.kill(os.getpid(), signal.SIGTERM)",
    ],
)
def test_a_forked_program_finds_the_world_and_ends_as_under_python(text: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(text)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.begun_by = __file__")
    command = ["program.py", "one", "two"]
    path = os.pathsep.join([str(tmp_path / "site"), forked.FINDS_US["PYTHONPATH"]])
    environment = os.environ | {"PYTHONPATH": path}
    python = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=environment,
        input="given",
        capture_output=True,
        text=True,
        check=False,
    )
    expected = python.returncode, python.stdout.replace(str(tmp_path), "HERE"), python.stderr
    for unloads in (True, False):
        output = forked.run(command, tmp_path, stdin="given", environment=environment, unloads=unloads)
        assert (output.returncode, output.stdout.replace(str(tmp_path), "HERE"), output.stderr) == expected
