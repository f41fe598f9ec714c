"""`overlapscope run` with programs that use torch.profiler themselves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.recorded import ops_and_ranges, steps
from tests.support.run_command import AS_IT_IS, FORKED, OWN, SHORT, TRAIN, no_gpu, ours, write, wrote

pytest.importorskip("torch", reason="records with torch")
TWICE = "overlapscope: The program's own torch.profiler recorded 2 times: own.trace.json.gz and own-2.trace.json.gz."


def steps_in(names: Iterable[str]) -> list[int]:
    return sorted(int(name.removeprefix("ProfilerStep#")) for name in names if name.startswith("ProfilerStep#"))


OWN_PROFILERS = {
    "schedule": (
        "with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=2),\n"
        "             on_trace_ready=tensorboard_trace_handler('handled')) as p:\n"
        "    for _ in range(9): train(); p.step()\n"
        "print(p.key_averages()[0].key, len(list(pathlib.Path('handled').iterdir())))\n",
        ["ProfilerStep* 2"],
        [wrote("own.trace.json.gz"), wrote("own-2.trace.json.gz"), OWN, TWICE, no_gpu()],
        {"ProfilerStep#2", "ProfilerStep#3", "aten::addmm"},
    ),
    "between rehearsal and recording": (
        "for _ in range(13): train()\nwith profile() as p: torch.ones(3) * 3\nfor _ in range(40): train()\n",
        [],
        [wrote("own.trace.json.gz"), OWN, no_gpu()],
        {"aten::mul"},
    ),
    "export": (
        "with profile() as p: torch.ones(3) * 3\n"
        "p.export_chrome_trace('first.json.gz')\n"
        "try: p.export_chrome_trace('again.json')\n"
        "except RuntimeError as error: print(error)\n"
        "with profile() as q: torch.ones(3) / 3\n"
        "q.export_chrome_trace('second.json')\n"
        "print([event.key for event in p.key_averages() if event.key == 'aten::mul'])\n",
        ["Trace is already saved.", "['aten::mul']"],
        [wrote("own.trace.json.gz"), wrote("own-2.trace.json.gz"), OWN, TWICE, no_gpu()],
        {"aten::mul"},
    ),
    "legacy": (
        "with torch.autograd.profiler.profile() as p: torch.ones(3) * 3\n"
        "p.export_chrome_trace('first.json')\n"
        "with torch.autograd.profiler.profile(enabled=False): torch.ones(3)\n"
        "print(len(p.function_events) > 1)\n",
        ["True"],
        [wrote("own.trace.json.gz"), OWN, no_gpu()],
        {"aten::mul"},
    ),
    "thread": (
        "def work():\n"
        "    with profile() as p: torch.ones(3) * 3\n"
        "    p.export_chrome_trace('first.json')\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n",
        [],
        [wrote("own.trace.json.gz"), OWN, no_gpu()],
        {"aten::mul"},
    ),
    "left running": (
        "p = profile(); p.start(); torch.ones(3) * 3\n"
        "def late(): p.stop(); p.export_chrome_trace('first.json'); print('late')\n"
        "atexit.register(late)\n",
        ["late"],
        [wrote("own.trace.json.gz"), OWN, no_gpu()],
        {"aten::mul"},
    ),
    "never": (
        "with profile(schedule=schedule(wait=99, warmup=1, active=2)) as p:\n"
        "    for _ in range(9): train(); p.step()\n",
        [],
        [wrote("own.trace.json.gz"), SHORT.format(11), no_gpu()],
        {f"ProfilerStep#{step}" for step in range(10)},
    ),
    "switched off": (
        "with torch.autograd.profiler.profile(False), torch.autograd.profiler.emit_itt(False): train()\n",
        [],
        [
            wrote("own.trace.json.gz"),
            SHORT.format(3).replace("its first steps were recorded instead", AS_IT_IS),
            no_gpu(),
        ],
        {"ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"},
    ),
    "another kind": (
        "with torch.autograd.profiler.emit_itt(): torch.ones(3)\n",
        [],
        [
            "overlapscope: The program marks its ops for another profiler with emit_itt, and only one can run; without "
            "it, the program is recorded.",
            "overlapscope: nothing was recorded.",
        ],
        None,
    ),
    "overlapscope": (
        "import overlapscope\n"
        "with overlapscope.record('first.json', plain_steps=0) as rec:\n    for _ in range(3): train(); rec.step()\n"
        "with overlapscope.record('second.json') as rec: torch.ones(3) / 3\n"
        "os.chdir('/')\n",
        [],
        [
            *map(wrote, ("first.json", "second.json", "own.trace.json.gz")),
            "overlapscope: The program made a recording of its own with overlapscope.record; this is a copy of it.",
            no_gpu(),
        ],
        {"ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2", "aten::addmm"},
    ),
}
"""Programs, with their output, our messages, and required contents of our trace."""


@pytest.mark.parametrize("kind", OWN_PROFILERS)
def test_the_program_keeps_its_own_profiler_and_we_get_its_first_trace(kind: str, tmp_path: Path) -> None:
    text, printed, expected, recorded = OWN_PROFILERS[kind]
    head = "import atexit, os, pathlib, threading\nfrom torch.profiler import *\n"
    write(tmp_path / "own.py", TRAIN + head + "for _ in range(2): train()\n" + text)
    run = forked.run([*FORKED, "own.py"], tmp_path)
    assert (run.returncode, run.stdout.splitlines()) == (0, printed)
    assert ours(run) == expected
    trace = tmp_path / "own.trace.json.gz"
    assert trace.exists() == (recorded is not None)
    if recorded is not None:
        assert recorded <= ops_and_ranges(trace)
        assert "aten::div" not in ops_and_ranges(trace)
        assert steps(trace) == steps_in(recorded)
    for name in ("first.json", "first.json.gz"):
        if (tmp_path / name).exists():
            assert ops_and_ranges(tmp_path / name) == ops_and_ranges(trace)
    if (tmp_path / "second.json").exists():
        assert "aten::div" in ops_and_ranges(tmp_path / "second.json")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
