"""The pytest plugin on a real GPU: a loop that loads its batches badly fails for that reason, a better one passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from overlapscope.pytest_plugin import assert_overlap
from tests.support.pytest_runs import OPTIONS, output

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LOOPS = """
import pytest
import torch

STEPS = 10
BATCH = 16 << 20
SIDE = 4096


def compute(batch, weight):
    # Some times as long as the copy of a batch, on any GPU.
    for _ in range(4):
        weight @ weight
    batch.mul_(2)


def naive(recording, weight):
    # Wrong: pageable memory, on the stream of the compute.
    host = torch.ones(BATCH)
    for _ in range(STEPS):
        compute(host.to("cuda", non_blocking=True), weight)
        recording.step()


def prefetching(recording, weight):
    # Right: pinned memory, on a stream of its own, a step ahead, into two buffers.
    host = [torch.ones(BATCH).pin_memory() for _ in range(2)]
    device = [torch.empty(BATCH, device="cuda") for _ in range(2)]
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    copied = [torch.cuda.Event() for _ in range(2)]
    used = [torch.cuda.Event() for _ in range(2)]

    def fetch(slot):
        side.wait_event(used[slot])
        with torch.cuda.stream(side):
            device[slot].copy_(host[slot], non_blocking=True)
        copied[slot].record(side)

    fetch(0)
    for step in range(STEPS):
        fetch((step + 1) % 2)
        main.wait_event(copied[step % 2])
        compute(device[step % 2], weight)
        used[step % 2].record(main)
        recording.step()


class NoSteps:
    def step(self): pass


@pytest.fixture
def weight():
    weight = torch.randn(SIDE, SIDE, device="cuda")
    # The first of a kind of kernel takes long to load.
    compute(torch.ones(BATCH, device="cuda"), weight)
    torch.cuda.synchronize()
    return weight
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "traces"


@pytest.fixture
def run(pytester: pytest.Pytester, directory: Path) -> pytest.RunResult:
    pytester.makepyfile(
        test_loops=LOOPS
        + """

BUDGETS = pytest.mark.overlap(min_efficiency="80%", max_exposed_copy="20%", forbid=["pageable-memory"], skip_steps=1)


@BUDGETS
@pytest.mark.parametrize("loop", [naive, prefetching])
def test_loop(loop, weight, overlap_profile):
    with overlap_profile as recording:
        loop(recording, weight)


@BUDGETS
def test_both(weight, overlap_profile):
    for loop in (prefetching, naive):
        with overlap_profile as recording:
            loop(recording, weight)


@BUDGETS
class TestKeptOpen:
    @pytest.fixture(autouse=True)
    def recorded(self, weight, overlap_profile):
        with overlap_profile as recording:
            yield recording

    def test_prefetching(self, recorded, weight):
        prefetching(recorded, weight)

    def test_naive(self, recorded, weight):
        naive(recorded, weight)


@pytest.mark.overlap(min_efficiency="80%", scope="window")
def test_without_steps(weight, overlap_profile):
    with overlap_profile:
        prefetching(NoSteps(), weight)


@pytest.mark.overlap(min_efficiency="80%")
def test_steps_forgotten(weight, overlap_profile):
    with overlap_profile:
        prefetching(NoSteps(), weight)


def test_just_recorded(weight, overlap_profile):
    with overlap_profile as recording:
        naive(recording, weight)
    report = overlap_profile.report
    assert report.devices[0].overlap.hidden_copy_pct < 20
    assert "pageable-memory" in {finding.rule for finding in report.findings}
"""
    )
    return pytester.runpytest_subprocess(*OPTIONS, "--overlap-require", "--overlap-dir", str(directory), "-rA")


def said_of(test: str, run: pytest.RunResult) -> str:
    """Return the text below a test's headline."""
    _, _, rest = output(run).partition(f"_ {test} _")
    return re.split(r"^_{3,} .* _{3,}$|^={3,} .* ={3,}$", rest, maxsplit=1, flags=re.MULTILINE)[0]


def test_each_loop_has_the_outcome_that_it_should_and_its_cause(run: pytest.RunResult, directory: Path) -> None:
    passed = ["test_loop[prefetching]", "TestKeptOpen::test_prefetching", "test_without_steps"]
    passed += ["test_steps_forgotten", "test_just_recorded"]
    failed = ["test_loop[naive]", "TestKeptOpen::test_naive", "test_both"]
    matches = re.findall(r"^(PASSED|FAILED) test_loops\.py::(\S+)", output(run), re.MULTILINE)
    assert sorted(matches) == sorted([("PASSED", name) for name in passed] + [("FAILED", name) for name in failed])
    for name in ("test_loop[naive]", "TestKeptOpen.test_naive", "test_both"):
        text = said_of(name, run)
        assert "efficiency_pct >= 80%" in text and "forbid pageable-memory" in text
        assert "pageable-memory" in text
        assert "Traceback" not in text
    # The traces are kept, under the names of their tests, and tell the same again.
    names = [path.name for path in sorted(directory.iterdir())]
    assert len(names) == 9
    assert {"test_loops.py-test_both.trace.json.gz", "test_loops.py-test_both-2.trace.json.gz"} <= set(names)
    assert_overlap(directory / "test_loops.py-test_both.trace.json.gz", min_efficiency="80%", skip_steps=1)
    with pytest.raises(AssertionError, match="pageable-memory"):
        assert_overlap(directory / "test_loops.py-test_both-2.trace.json.gz", min_efficiency="80%", skip_steps=1)


def test_lines_are_named_where_stacks_are_recorded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_loops=LOOPS
        + """

@pytest.mark.overlap(forbid=["pageable-memory"])
def test_naive(weight, overlap_profile):
    with overlap_profile as recording:
        naive(recording, weight)
"""
    )
    result = pytester.runpytest_subprocess(*OPTIONS, "--overlap-require", "--overlap-stacks")
    result.assert_outcomes(failed=1)
    without_blanks = "".join(output(result).split())  # Long lines are broken.
    assert re.search(r"test_loops\.py(\(\d+\):|:\d+in)naive", without_blanks)
