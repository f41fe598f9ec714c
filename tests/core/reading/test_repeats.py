"""Steps of recordings that mark none: what repeats, how much of a recording it covers, and what lies outside."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.periods import is_step, step_called
from overlapscope.analysis.results import Outside
from overlapscope.base.marks import repeat_name, step_number
from overlapscope.commands import main
from overlapscope.export.chrome_trace import blocks
from overlapscope.reading import load
from overlapscope.reading.own_period import periodic_steps
from overlapscope.trace.model import Kind, Trace
from tests.support.helpers import Host, Op, make_trace

UNIT_NS = 100


def kernel(name: str, start: int, length: int = 15) -> Op:
    return Op(Kind.COMPUTE, start, start + length, launch=(start, start + 1), name=name)


def units(count: int, begin: int = 0) -> list[Op]:
    return [kernel(name, begin + UNIT_NS * n + 20 * k) for n in range(count) for k, name in enumerate("abcd")]


def steps_of(trace: Trace) -> list[str]:
    return [trace.annotations.name(row) for row in is_step(trace.annotations).nonzero()[0].tolist()]


def read(at: int) -> Op:
    return Op(Kind.D2H, at, at + 5, launch=(at, at + 5), call="cudaMemcpyAsync", size=4, name="Memcpy DtoH")


@given(count=st.integers(4, 30), before=st.integers(0, 900), after=st.integers(0, 900))
def test_repeats_are_steps_exactly_if_they_cover_90_percent(count: int, before: int, after: int) -> None:
    ops = [*([kernel("init", 0, 10)] if before else []), *units(count, before and before + 10)]
    end = ops[-1].end + after
    if after:
        ops.append(kernel("exit", end, 10))
    trace = periodic_steps(make_trace(ops))
    begin = ops[1 if before else 0].start
    covered_ns, recorded_ns = (end if after else ops[-1].end) - begin, ops[-1].end
    assert trace.period is not None and trace.period.repeats == count
    assert trace.period.covered_pct == 100 * covered_ns / recorded_ns
    expected = [repeat_name(n + 1, count) for n in range(count)] if 10 * covered_ns >= 9 * recorded_ns else []
    assert steps_of(trace) == expected
    result = analyze_trace(trace).result
    assert [step.name for step in result.devices[0].steps] == expected
    detail = next(check.detail for check in result.trust.checks if check.id == "steps")
    assert f"{100 * covered_ns // recorded_ns}% of the GPU's recording" in detail


@pytest.mark.parametrize(("before", "steps"), [(0, 20), (2, 20), (5, 0), (20, 0)])
def test_repeats_are_no_steps_if_they_leave_out_the_work_of_another_device(before: int, steps: int) -> None:
    elsewhere = [kernel(f"k{n}", UNIT_NS * n, 20)._replace(device=1) for n in range(before + 20)]
    ops = [op._replace(launch=(op.start, op.start + 1)) for op in units(20, UNIT_NS * before + 1)]
    trace = periodic_steps(make_trace([*elsewhere, *ops]))
    assert trace.period is not None and trace.period.repeats == 20
    assert len(steps_of(trace)) == steps


@given(streams=st.lists(st.sampled_from([7, 9]), min_size=4, max_size=4), count=st.integers(3, 20))
def test_the_stated_coverage_is_that_of_the_steps_whatever_their_streams(streams: list[int], count: int) -> None:
    ops = [op._replace(stream=streams[n % 4]) for n, op in enumerate(units(count))]
    trace = periodic_steps(make_trace([Op(Kind.H2D, -120, -20, stream=9, launch=(-130, -129)), *ops]))
    device = analyze_trace(trace).result.devices[0]
    if trace.period is not None and device.judged is not None:
        assert bool(device.steps) == trace.period.is_step
        covered_ns = sum(step.span_ns for step in device.steps)
        assert not device.steps or trace.period.covered_pct == 100 * covered_ns / device.judged.span_ns


@given(layers=st.integers(4, 40), requests=st.integers(1, 6))
def test_layers_of_a_model_are_no_steps(layers: int, requests: int) -> None:
    """A head and a read follow the layers of each request, and are below a tenth of it."""
    ops: list[Op] = []
    for _ in range(requests):
        begin = ops[-1].end + 5 if ops else 0
        ops += units(layers, begin)
        end = ops[-1].end
        ops += [kernel("head", end), kernel("sample", end + 15), read(end + 30)]
    trace = periodic_steps(make_trace(ops))
    if requests >= 3:
        assert trace.period is not None and trace.period.repeats == requests and len(steps_of(trace)) == requests
    elif requests == 2:
        assert trace.period is None and not steps_of(trace)


@pytest.mark.parametrize("name", ["nn.Module: Decoder_0", "train.py(7): epoch"])
def test_what_repeats_in_a_call_of_a_module_is_no_step(name: str) -> None:
    trace = make_trace(units(12), python_frames=[Host(name, 0, 1300)])
    assert bool(steps_of(periodic_steps(trace))) != name.startswith("nn.Module")


MARKS = ["", "Optimizer.step#SGD.step", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "read"]


@given(count=st.integers(4, 20), calls=st.integers(1, 3), mark=st.sampled_from(MARKS))
def test_what_repeats_in_a_range_is_a_step_only_if_each_has_a_mark_of_an_iteration(
    count: int, calls: int, mark: str
) -> None:
    """A range may be one call of a model, or the whole loop of a program."""
    begins = [UNIT_NS * n for n in range(count * calls)]
    ranges = [Host("run", begin, begin + count * UNIT_NS) for begin in begins[::count]]
    notes = [Host(mark, begin + 81, begin + 85) for begin in begins if mark not in ("", "read")]
    reads = [read(begin + 80) for begin in begins if mark == "read"]
    ops = sorted([*units(count * calls), *reads], key=lambda op: op.start)
    waits = [Host("cudaStreamSynchronize", op.start + 6, op.start + 8) for op in reads]
    trace = periodic_steps(make_trace(ops, calls=waits, annotations=[*ranges, *notes]))
    assert len(steps_of(trace)) == (count * calls if mark else 0)
    assert mark or trace.period is None


@given(count=st.integers(4, 20), range_name=st.sampled_from(["model_inference", MARKS[2]]))
def test_what_repeats_in_one_range_on_the_cpu_is_no_step(count: int, range_name: str) -> None:
    ops = [
        Host(f"aten::{name}", 10 + 100 * n + 20 * k, 28 + 100 * n + 20 * k)
        for n in range(count)
        for k, name in enumerate("abcd")
    ]
    alone, within = (
        periodic_steps(make_trace([], cpu_ops=ops, annotations=notes))
        for notes in ([], [Host(range_name, 0, 100 * count + 20)])
    )
    assert len(steps_of(alone)) == count and not steps_of(within) and within.period is None


@given(blocks=st.integers(3, 20), passes=st.integers(3, 9), cut=st.integers(0, 3))
def test_blocks_of_a_model_on_the_cpu_are_no_steps_but_its_passes_are(blocks: int, passes: int, cut: int) -> None:
    def calls(names: str) -> Trace:
        ops = [Host(f"aten::{name}", 10 * n, 10 * n + 9) for n, name in enumerate(names)]
        return periodic_steps(make_trace([], cpu_ops=ops))

    model = "abcd" * blocks + "ef"
    assert calls(model).period is None
    found = steps_of(calls(model * passes + model[:cut]))
    assert len(found) in (passes - 1, passes)


@given(others=st.lists(st.integers(0, 8), min_size=8, max_size=20))
def test_what_repeats_on_one_stream_is_no_step_if_the_work_on_others_does_not(others: list[int]) -> None:
    ops = units(len(others))
    for n, count in enumerate(others):
        ops += [kernel(f"other{k}", 100 * n + 81 + 2 * k, 1)._replace(stream=9) for k in range(count)]
    trace = periodic_steps(make_trace(sorted(ops, key=lambda op: op.start)))
    launched = [4 + count for count in others[:-1]]
    usual = statistics.median(launched)
    alike = statistics.fmean(min(count, usual) / max(count, usual) for count in launched)
    if trace.period is not None and trace.period.length == 4:
        assert alike >= 0.7


@pytest.mark.parametrize("threads", [1, 2])
def test_requests_that_several_threads_launch_are_no_steps(threads: int) -> None:
    ops = [op._replace(thread=1 + n // 4 % threads) for n, op in enumerate(units(12))]
    assert bool(steps_of(periodic_steps(make_trace(ops)))) == (threads == 1)


@pytest.mark.parametrize("iterations", [3, 4, 9])
def test_an_iteration_ends_where_the_host_waits_though_it_launches_the_same_over_and_over(iterations: int) -> None:
    waits = [Host("cudaDeviceSynchronize", 600 * n - 8, 600 * n - 2) for n in range(1, iterations + 1)]
    trace = periodic_steps(make_trace(units(6 * iterations), calls=waits))
    assert trace.period is not None and (trace.period.length, trace.period.repeats) == (24, iterations)
    assert len(steps_of(trace)) == iterations


def test_waits_that_repeat_between_two_kernels_are_no_steps() -> None:
    names = ("cudaStreamSynchronize", "cudaEventSynchronize")
    waits = [Host(names[n % 2], 100 + 10 * n, 105 + 10 * n) for n in range(80)]
    trace = periodic_steps(make_trace([kernel("a", 0), kernel("b", 1_000)], calls=waits))
    assert steps_of(trace) == []


def test_iterations_with_a_warm_up_before_a_synchronization_are_steps() -> None:
    trace = make_trace(units(30), calls=[Host("cudaDeviceSynchronize", 290, 299)])
    assert len(steps_of(periodic_steps(trace))) == 30


sizes = st.one_of(st.just(-1), st.integers(0, 1000))
copies = st.lists(
    st.tuples(st.sampled_from([Kind.H2D, Kind.D2H]), st.integers(0, 1500), st.integers(1, 300), sizes), max_size=8
)


@given(copies=copies, begin=st.integers(1, 600), marked=st.booleans())
def test_what_lies_outside_is_that_of_brute_force(
    copies: list[tuple[Kind, int, int, int]], begin: int, marked: bool
) -> None:
    begin = min(begin, 80) if not marked else begin
    moved = [
        Op(kind, at, at + ns, stream=9, launch=(at, at + 1), call="cudaMemcpyAsync", size=size)
        for kind, at, ns, size in copies
    ]
    notes = [Host(f"ProfilerStep#{n}", begin + 100 * n, begin + 100 * n + 99) for n in range(10)] if marked else []
    trace = periodic_steps(make_trace([*units(10, begin), *moved], annotations=notes))
    device = analyze_trace(trace).result.devices[0]
    if not device.steps:
        assert device.outside is None
        return
    first, last = device.steps[0].window.start_ns, device.steps[-1].window.end_ns
    ends = [op.end for op in (*units(10, begin), *moved)]
    outside = [op for op in moved if op.end <= first or op.start >= last]

    def total(kind: Kind) -> int | None:
        found = [op.size for op in outside if op.kind == kind]
        return None if -1 in found else sum(found)

    start = min(begin, *(op.start for op in moved)) if moved else begin
    assert device.outside == Outside(
        unmeasured_ns=0,
        before_ns=first - start,
        after_ns=max(ends) - last,
        h2d_bytes=total(Kind.H2D),
        d2h_bytes=total(Kind.D2H),
    )
    assert first - start + max(ends) - last + sum(step.span_ns for step in device.steps) == device.span_ns


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        (
            make_trace(units(20, 900), cpu_ops=[Host("aten::randn", 0, 890)]),
            "900 ns of the host before the first GPU op",
        ),
        (
            make_trace([kernel("a", 100)], cpu_ops=[Host("aten::mm", 90, 400)]),
            "10 ns of the host before the first GPU op and 285 ns of the host after the last GPU op",
        ),
        (
            make_trace([kernel("a", 100), kernel("b", 300)._replace(device=1)], cpu_ops=[Host("aten::mm", 0, 320)]),
            "100 ns of the host before the first GPU op and 5 ns of the host after the last GPU op",
        ),
        (
            make_trace([Op(Kind.COMPUTE, 0, 90), Op(Kind.COMPUTE, 90, 100), kernel("a", 150)]),
            "100 ns in which the GPU worked off what was launched before the recording",
        ),
    ],
)
def test_a_report_says_what_it_does_not_judge(
    trace: Trace, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"".join(blocks(trace, packed=False)))
    assert main(["analyze", str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"Not judged: {sentence}." in out and "all that was recorded, " not in out


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ProfilerStep#4", 4),
        ("repeat 5 of 36", 5),
        ("repeat 5 of", -1),
        ("a repeat 5 of 36", -1),
        ("ProfilerStep#", -1),
    ],
)
def test_the_number_in_the_name_of_a_step(name: str, number: int) -> None:
    assert step_number(name) == number


def test_a_step_is_asked_for_by_its_number() -> None:
    notes = periodic_steps(make_trace(units(9))).annotations
    for name in ("4", "ProfilerStep#4", "repeat 4 of 9"):
        assert step_called(notes, name) == "repeat 4 of 9"
    assert step_called(notes, "77") == "ProfilerStep#77"
    assert step_called(notes, "forward") == "forward"


def test_a_report_calls_repeats_by_their_names_and_says_what_lies_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upload = Op(Kind.H2D, 0, 60, launch=(0, 1), call="cudaMemcpyAsync", size=1000, name="Memcpy HtoD")
    path = tmp_path / "a.json"
    path.write_bytes(b"".join(blocks(make_trace([upload, *units(20, 100)]), packed=False)))
    assert steps_of(load(path, progress=False))[4] == "repeat 5 of 20"
    assert main(["analyze", str(path), "-v"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "every 4 kernel launches repeat, 20 times; 100% regular. They cover 95% of the GPU's recording." in out
    assert "Outside the steps: 100 ns, 1 kB H2D." in out
    assert "repeat 5 of 20" in out and "ProfilerStep" not in out
    assert main(["analyze", str(path), "--step", "5"]) == 0
    assert "repeat 5 of 20" in capsys.readouterr().out
