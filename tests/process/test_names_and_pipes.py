"""Tests of arguments that a shell can pass: circular links, names that are not UTF-8, pipes, and too little memory."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overlapscope.reading import expand
from tests.support.helpers import TRACES

GOOD = TRACES / "known_causes" / "late_issue.json.gz"
COMMAND = [sys.executable, "-m", "overlapscope"]


def test_links_to_the_folder_itself_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner" / ".hidden").mkdir(parents=True)
    for name in ("a.json.gz", "inner/b.json.gz", "inner/.hidden/c.json.gz"):
        shutil.copy(GOOD, tmp_path / name)
    for name in ("one", "two"):
        (tmp_path / "inner" / name).symlink_to(tmp_path)
    assert [str(path) for path in expand(["**/*.json.gz"])] == ["a.json.gz", "inner/b.json.gz"]
    assert expand([f"{tmp_path}/**/*.json.gz"]) == [tmp_path / "a.json.gz", tmp_path / "inner" / "b.json.gz"]


def test_ranks_writes_json_of_files_whose_names_are_no_utf8(tmp_path: Path) -> None:
    for rank in (0, 1):
        source = TRACES / "laboratory" / "ddp_training" / "ddp.traces" / f"rank{rank}.trace.json.gz"
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/rank%d-\xff.trace.json.gz" % rank)).write_bytes(source.read_bytes())
    command = [*COMMAND, "ranks", "--workers", "1", "--format", "json", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [row["rank"] for row in json.loads(done.stdout)["ranks"]] == [0, 1]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="elsewhere the copy has a name")
def test_a_command_that_is_killed_while_it_reads_a_pipe_leaves_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([*COMMAND, "analyze", "-"], stdin=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        process.stdin.write(GOOD.read_bytes()[:1000])
        process.stdin.flush()
        while not any("deleted" in os.readlink(entry) for entry in Path(f"/proc/{process.pid}/fd").iterdir()):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_too_little_memory_is_a_sentence() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (100 << 20, 100 << 20))

    done = subprocess.run(
        [*COMMAND, "analyze", str(GOOD)], capture_output=True, text=True, check=False, preexec_fn=limit
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "there is not enough memory" in done.stderr
