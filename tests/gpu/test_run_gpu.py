"""`overlapscope run` on a GPU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from overlapscope.reading import load
from tests.support.recorded import content, steps
from tests.support.run_command import RUN, TRAIN, execute, messages, write, wrote

torch = pytest.importorskip("torch", reason="records with torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_on_a_gpu_the_analysis_follows(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        "import os\n" + TRAIN + "os.environ['CUDA_VISIBLE_DEVICES'] = '0'\nmodel.cuda()\n"
        "for _ in range(45):\n"
        "    model(torch.ones(4, 8).cuda()).sum().backward(); optimizer.step()\n"
        "print('ran')\n",
    )
    run = execute([*RUN, "train.py"], tmp_path)
    assert (run.returncode, run.stdout) == (0, "ran\n")
    assert steps(tmp_path / "train.trace.json.gz") == list(range(22, 29))
    plain = load(tmp_path / "train.trace.json.gz").plain_steps
    assert [len(side.device_ns) for side in (plain.before, plain.after)] == [10, 10]
    lines = messages(run)
    assert wrote("train.trace.json.gz") in lines
    assert any(line.startswith("train.trace.json.gz, ") for line in lines)
    assert any(line.startswith("where a step goes") for line in lines)


def test_on_a_gpu_open_ends_in_the_dashboard(tmp_path: Path) -> None:
    pytest.importorskip("dash")
    write(
        tmp_path / "train.py",
        TRAIN + "model.cuda()\n"
        "for _ in range(12):\n"
        "    model(torch.ones(4, 8).cuda()).sum().backward(); optimizer.step()\n"
        "print('ran')\nraise SystemExit(3)\n",
    )
    run = subprocess.Popen(
        [*RUN, "--open", "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stderr is not None
    lines = []
    for line in run.stderr:
        lines.append(line)
        if (address := re.search(r"Serving at (\S+)", line)) is not None:
            break
    assert address is not None and any(line.startswith("train.trace.json.gz, ") for line in lines), lines
    with build_opener(HTTPCookieProcessor()).open(address[1]) as answer:
        assert b"overlapscope" in answer.read()
    os.killpg(run.pid, signal.SIGINT)
    output, rest = run.communicate(timeout=60)
    assert (run.returncode, output, rest) == (3, "ran\n", "Stopped.\n")


def test_on_a_gpu_the_program_s_own_profiler_records_sync_events(tmp_path: Path) -> None:
    write(
        tmp_path / "own.py",
        TRAIN + "model.cuda()\n"
        "with torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=2)) as p:\n"
        "    for _ in range(6):\n"
        "        model(torch.ones(4, 8).cuda()).sum().item(); p.step()\n",
    )
    run = execute([*RUN, "own.py"], tmp_path)
    assert run.returncode == 0, run.stderr
    trace = tmp_path / "own.trace.json.gz"
    assert steps(trace) == [2, 3]
    assert any(event.get("cat") == "cuda_sync" for event in content(trace)["traceEvents"])
    assert any(line.startswith("own.trace.json.gz, ") for line in messages(run))
