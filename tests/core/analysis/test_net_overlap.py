"""Cost of overlap: kernels run longer beside communication or copies."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.net_overlap import _left_out
from overlapscope.analysis.results import NetOverlap
from overlapscope.base.saved import encode
from overlapscope.report.model import build, from_json
from overlapscope.report.page import Page
from overlapscope.report.verdict import judge
from overlapscope.trace.model import Kind, Trace
from tests.support.helpers import US, Op, make_trace

LENGTH = 100 * US
KINDS = {"communication": Kind.COMM, "copies": Kind.H2D}


def _planted(slowdown: float, *, beside: str = "communication", seed: int = 0, count: int = 40) -> Trace:
    """Return a trace of equal kernels, every other one beside other work and longer by `slowdown`."""
    rng, ops, at = random.Random(seed), list[Op](), 0
    for number in range(count):
        length = round(LENGTH * rng.gauss(1, 0.02) * (1 + slowdown * (number % 2)))
        ops.append(Op(Kind.COMPUTE, at, at + length, stream=7, name="gemm"))
        if number % 2:
            ops.append(Op(KINDS[beside], at, at + length, stream=9, name="ncclDevKernel_AllReduce"))
        at += length + 5 * US
    return make_trace(ops)


def _only(trace: Trace) -> NetOverlap:
    (device,) = analyze_trace(trace).result.devices
    (result,) = device.net_overlap
    return result


def _slowed_ns(result: NetOverlap) -> tuple[int, int, int]:
    """Return the estimate between the ends of its interval."""
    assert result.slowed_low_ns is not None and result.slowed_ns is not None and result.slowed_high_ns is not None
    return result.slowed_low_ns, result.slowed_ns, result.slowed_high_ns


class TestAPlantedSlowdown:
    @pytest.mark.parametrize("beside", KINDS)
    @pytest.mark.parametrize("slowdown", [0.05, 0.3, 1.0])
    def test_lies_in_its_interval_which_excludes_zero(self, slowdown: float, beside: str) -> None:
        result = _only(_planted(slowdown, beside=beside))
        # The last kernel has none after it, so that it has no equals.
        planted_ns = 19 * LENGTH * slowdown
        assert result.beside == beside
        low_ns, slowed_ns, high_ns = _slowed_ns(result)
        assert 0 < low_ns <= planted_ns <= high_ns
        assert slowed_ns == pytest.approx(planted_ns, rel=0.3)
        assert result.judged_ns > 0.9 * result.overlapped_ns

    def test_lies_in_nearly_all_intervals(self) -> None:
        estimates = [_slowed_ns(_only(_planted(0.3, seed=seed))) for seed in range(20)]
        assert sum(low_ns <= 19 * 0.3 * LENGTH <= high_ns for low_ns, _, high_ns in estimates) >= 17

    def test_of_nothing_has_an_interval_that_includes_zero(self) -> None:
        estimates = [_slowed_ns(_only(_planted(0.0, seed=seed))) for seed in range(20)]
        assert sum(low_ns <= 0 <= high_ns for low_ns, _, high_ns in estimates) >= 17

    def test_counts_kernels_and_names_them(self) -> None:
        (kernel,) = (kernel for kernel in _only(_planted(0.3)).kernels if kernel.beside_count > 10)
        assert kernel.kernel == "gemm"
        assert kernel.alone_ns == pytest.approx(LENGTH, rel=0.02)
        assert kernel.beside_ns == pytest.approx(1.3 * LENGTH, rel=0.02)


class TestKernelsAreNotJudged:
    def test_where_none_ran_alone(self) -> None:
        ops = [Op(Kind.COMPUTE, at, at + 50, name="gemm") for at in range(0, 1000, 50)]
        result = _only(make_trace([*ops, Op(Kind.COMM, 0, 1000, stream=9)]))
        assert result.unjudged_by_cause == {"never-alone": 1000, "too-few": 0, "varying": 0}
        assert (result.judged_ns, result.slowed_ns, result.kernels) == (0, None, ())

    def test_where_too_few_ran_either_way(self) -> None:
        result = _only(_planted(0.5, count=4))
        assert result.judged_ns == 0
        assert result.slowed_low_ns is None

    def test_where_their_lengths_vary(self) -> None:
        ops, at = list[Op](), 0
        for number in range(40):
            length = (100, 300)[number // 2 % 2]
            ops.append(Op(Kind.COMPUTE, at, at + length, name="gemm"))
            if number % 2:
                ops.append(Op(Kind.COMM, at, at + length, stream=9))
            at += length + 10
        assert _only(make_trace(ops)).unjudged_by_cause["varying"] > 0

    def test_where_their_grids_differ(self) -> None:
        ops, at = list[Op](), 0
        for number in range(40):
            length = (100, 200)[number % 2]
            ops.append(Op(Kind.COMPUTE, at, at + length, name="gemm", blocks=(8, 16)[number % 2]))
            if number % 2:
                ops.append(Op(Kind.COMM, at, at + length, stream=9))
            at += length + 10
        result = _only(make_trace(ops))
        assert result.unjudged_by_cause["never-alone"] == result.overlapped_ns

    def test_where_the_kernels_around_them_differ(self) -> None:
        """A layer of another size has the same kernel among other kernels."""
        ops, at = list[Op](), 0
        for _ in range(20):
            for name, length in (("norm", 10), ("gemm", 100), ("gelu", 10), ("gemm", 200)):
                ops.append(Op(Kind.COMPUTE, at, at + length, name=name))
                if length == 200:
                    ops.append(Op(Kind.COMM, at, at + length, stream=9))
                at += length
        result = _only(make_trace(ops))
        assert result.unjudged_by_cause["never-alone"] == result.overlapped_ns

    def test_where_another_kernel_ran_beside_them(self) -> None:
        trace = _planted(0.5)
        others = make_trace(
            [
                Op(Kind(int(kind)), int(start), int(end), stream=int(stream), name="gemm")
                for kind, start, end, stream in zip(
                    trace.gpu_ops.kind, trace.gpu_ops.start_ns, trace.gpu_ops.end_ns, trace.gpu_ops.stream, strict=True
                )
            ]
            + [Op(Kind.COMPUTE, 0, int(trace.gpu_ops.end_ns.max()), stream=11, name="other")]
        )
        assert _only(others).judged_ns == 0


OPS = st.lists(
    st.builds(
        lambda kind, start, length, name, stream: Op(kind, start, start + length, stream=stream, name=name),
        st.sampled_from([Kind.COMPUTE, Kind.COMPUTE, Kind.COMM, Kind.H2D, Kind.D2H, Kind.OTHER]),
        st.integers(0, 120),
        st.integers(0, 15),
        st.sampled_from(["a", "b"]),
        st.sampled_from([7, 9]),
    ),
    min_size=1,
    max_size=40,
)


class TestExactParts:
    @given(OPS)
    def test_equal_a_count_of_every_nanosecond(self, ops: list[Op]) -> None:
        def at(kinds: set[Kind], ns: int) -> int:
            return sum(op.kind in kinds and op.start <= ns < op.end for op in ops)

        expected: Counter[str] = Counter()
        for ns in range(140):
            kernels, comm, copy = at({Kind.COMPUTE}, ns), at({Kind.COMM}, ns), at({Kind.H2D, Kind.D2H}, ns)
            expected["communication hidden"] += bool(comm and kernels)
            expected["copies hidden"] += bool(copy and (kernels or comm))
            expected["communication"] += kernels if comm else 0
            expected["copies"] += kernels if copy and not comm else 0
        (device,) = analyze_trace(make_trace(ops)).result.devices
        found = {result.beside: result for result in device.net_overlap}
        for beside in KINDS:
            assert (beside in found) == bool(expected[f"{beside} hidden"])
        for beside, result in found.items():
            assert result.hidden_ns == expected[f"{beside} hidden"]
            assert result.overlapped_ns == expected[beside]
            assert result.judged_ns + sum(result.unjudged_by_cause.values()) == result.overlapped_ns
            if result.slowed_ns is not None:
                assert [*_slowed_ns(result)] == sorted(_slowed_ns(result))


class TestTheInterval:
    @pytest.mark.parametrize(
        ("fewer", "more", "left_out"), [(1, 30, -1), (2, 7, -1), (2, 8, 0), (4, 4, 0), (5, 5, 2), (10, 10, 23)]
    )
    def test_is_that_of_published_tables(self, fewer: int, more: int, left_out: int) -> None:
        """Mann-Whitney's critical values, two-sided at 5%: 0 for 4 and 4, 2 for 5 and 5, 23 for 10 and 10."""
        assert _left_out(fewer, more) == left_out

    def test_changes_little_where_it_is_approximated(self) -> None:
        assert _left_out(21, 40) - _left_out(20, 40) == pytest.approx(_left_out(20, 40) - _left_out(19, 40), abs=3)


class TestTheReport:
    def test_keeps_negative_costs_in_json(self) -> None:
        report = build([analyze_trace(_planted(0.0))])
        assert _slowed_ns(report.devices[0].net_overlap[0])[0] < 0
        assert from_json(encode(report)).devices == report.devices

    def test_says_a_cost_that_is_certain_and_large(self) -> None:
        (section,) = Page(build([analyze_trace(_planted(0.3))])).sections()
        assert judge(section).overlap_cost.startswith("Communication is hidden for 2.")
        assert "longer than alone" in judge(section).overlap_cost

    def test_does_not_mention_a_cost_below_one_percent(self) -> None:
        (section,) = Page(build([analyze_trace(_planted(0.0))])).sections()
        assert judge(section).overlap_cost == ""
