"""Tests that a server returns freed memory to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Pieces small enough for the heap, with the last one on top of it in use.
FREES = """
from pathlib import Path
from overlapscope.base.memory import release_free_memory
def resident_mb():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024
pieces = [bytearray(b"x") * 60_000 for _ in range(2_000)]
full = resident_mb()
del pieces[:-1]
release_free_memory()
print(full - resident_mb())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to")
def test_memory_that_was_freed_goes_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", FREES], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 100
