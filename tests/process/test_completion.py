"""Tests of bash completion with the script that `overlapscope completion` prints."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from overlapscope.commands import commands, main

CALL = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
function=$(complete -p overlapscope | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function overlapscope "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "overlapscope"
    assert main(["completion", "bash", "--output", str(path)]) == 0
    return path


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("", sorted(commands())),
        ("ana", ["analyze"]),
        ("analyze --fo", ["--force", "--format"]),
        ("analyze --format ", ["html", "json", "markdown", "speedscope", "text"]),
        ("analyze tra", ["trace.json", "traces"]),
        ("diff trace.json tra", ["trace.json", "traces"]),
        ("check --baseline tra", ["trace.json", "traces"]),
        ("scenarios report --results tra", ["traces"]),
        ("cache ", ["clear", "info"]),
        ("check --forbid page", ["page-migration", "pageable-memory"]),
        ("explain same-", ["same-stream"]),
    ],
)
def test_bash_completes(line: str, offered: list[str], script: Path, tmp_path: Path) -> None:
    (tmp_path / "trace.json").touch()
    (tmp_path / "traces").mkdir()
    done = subprocess.run(
        ["bash", "-c", CALL, "bash", script, "overlapscope", *line.split(" ")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(done.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_of_another_shell_is_one_to_it(shell: str, tmp_path: Path) -> None:
    path = tmp_path / "script"
    assert main(["completion", shell, "--output", str(path)]) == 0
    assert all(command in path.read_text() for command in commands())
    if shutil.which(shell):
        assert subprocess.run([shell, "-n", path], check=False).returncode == 0
