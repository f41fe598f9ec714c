"""Tests of the mesh rebuilt from process groups, compared with meshes of which the dimensions are known."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, ValidationError
from msgspec.structs import replace

from overlapscope.analysis.collectives import CommKind
from overlapscope.base.saved import encode
from overlapscope.ranks.comm_result import CommDimension, Communication
from overlapscope.ranks.comm_words import dimensions_table, groups_table
from overlapscope.ranks.communication import Transfers, slow_groups
from overlapscope.ranks.document import TERMINAL, document
from overlapscope.ranks.join import report_on
from overlapscope.ranks.mesh import RankGroup, families, ranks_of_group, rebuild
from overlapscope.ranks.parts import from_json
from overlapscope.ranks.result import RanksReport
from overlapscope.ranks.verdict import judge
from overlapscope.render import terminal
from tests.support.ranks_schedules import CommKernel, made_rank


class TrueMesh(Struct, frozen=True):
    """A mesh, and the dimensions that each family of groups spans."""

    shape: tuple[int, ...]
    spanned: tuple[frozenset[int], ...]

    def groups(self, dimensions: frozenset[int]) -> set[tuple[int, ...]]:
        """Return the sets of ranks of the groups along some dimensions."""
        lines: dict[tuple[int, ...], list[int]] = {}
        for rank, at in enumerate(product(*map(range, self.shape))):
            fixed = tuple(-1 if dimension in dimensions else each for dimension, each in enumerate(at))
            lines.setdefault(fixed, []).append(rank)
        return {tuple(sorted(ranks)) for ranks in lines.values()}

    def told_apart(self) -> list[frozenset[int]]:
        """Return the sets of dimensions that the families tell apart, outermost first."""
        alike: dict[tuple[bool, ...], set[int]] = {}
        for dimension in range(len(self.shape)):
            alike.setdefault(tuple(dimension in along for along in self.spanned), set()).add(dimension)
        return sorted(map(frozenset, alike.values()), key=max)

    def size(self, dimensions: frozenset[int]) -> int:
        return prod(self.shape[dimension] for dimension in dimensions)


@st.composite
def meshes(draw: st.DrawFn) -> TrueMesh:
    shape = tuple(draw(st.lists(st.integers(2, 4), min_size=1, max_size=3)))
    subsets = st.frozensets(st.integers(0, len(shape) - 1), min_size=1)
    return TrueMesh(shape, tuple(draw(st.lists(subsets, min_size=1, max_size=4, unique=True))))


@given(meshes(), st.data())
def test_the_mesh_is_right_and_if_ranks_are_missing_it_is_right_or_unknown(mesh: TrueMesh, data: st.DataObject) -> None:
    ranks = set(range(prod(mesh.shape)))
    recorded = ranks - data.draw(st.one_of(st.just(set()), st.sets(st.sampled_from(sorted(ranks)))))
    every = [(f"family {number}", group) for number, along in enumerate(mesh.spanned) for group in mesh.groups(along)]
    seen = [(name, group) for name, group in data.draw(st.permutations(every)) if recorded & {*group}]
    found = families([RankGroup(name, len(group), group) for name, group in seen])
    numbers = [int(seen[places[0]][0].removeprefix("family ")) for places in found]
    assert sorted(numbers) == [*range(len(mesh.spanned))] or not recorded
    sets = [{seen[place][1] for place in places} for places in found]
    result, spans = rebuild(sets, len(ranks), recorded)
    if result.reason:
        assert recorded < ranks and not result.shape and not any(spans)
        return
    parts, told = dict(zip(numbers, spans, strict=True)), mesh.told_apart()
    assert result.shape == tuple(map(mesh.size, told))
    for number, along in enumerate(mesh.spanned):
        if {group for name, group in seen if name == f"family {number}"} == mesh.groups(along):
            assert prod(result.shape[place] for place in parts[number]) == mesh.size(along)
            assert parts[number] == tuple(place for place, part in enumerate(told) if part & along)
        else:
            assert parts[number] == ()


@given(meshes(), st.data())
def test_groups_that_nothing_describes_are_told_apart_by_the_distances_of_their_ranks(
    mesh: TrueMesh, data: st.DataObject
) -> None:
    groups = [group for along in mesh.spanned for group in mesh.groups(along)]
    shuffled = data.draw(st.permutations(groups))
    found = families([RankGroup("undefined", len(ranks), ranks) for ranks in shuffled])
    assert {frozenset(shuffled[place] for place in places) for places in found} == {
        frozenset(mesh.groups(along)) for along in mesh.spanned
    }


def sets(*ranks: tuple[int, ...]) -> set[tuple[int, ...]]:
    return {*ranks}


def test_sets_that_are_no_mesh_are_unknown() -> None:
    halves, crossing = sets((0, 1, 2, 3), (4, 5, 6, 7)), sets((0, 1, 2, 4), (3, 5, 6, 7))
    every = {*range(8)}
    assert rebuild([halves, crossing], 8, every)[0].reason == "the process groups cross each other in different ways"
    # Each half's rank has an opposite one, but two of one half share theirs.
    assert "cross" in rebuild([halves, sets((0, 1), (2, 4), (3, 5), (6, 7))], 8, every)[0].reason
    thirds, pairs = sets((0, 2, 4), (1, 3, 5)), sets((0, 3), (1, 4), (2, 5))
    assert "cross" in rebuild([thirds, pairs], 6, {*range(6)})[0].reason
    assert rebuild([sets((0, 1, 2))], 8, every)[0].reason == "no process groups divide all ranks into equal parts"
    assert rebuild([sets((0, 1, 2, 3), (4, 5, 6))], 8, every)[0].reason.startswith("no process groups")
    assert rebuild([halves], None, every)[0].reason == "the traces don't state the number of ranks"
    assert rebuild([sets(())], 8, every)[0].reason == "the ranks of some process groups are unknown"
    assert rebuild([halves], 6, every)[0].reason == "the ranks of some process groups are unknown"


def test_a_dimension_without_groups_of_its_own_is_known_if_all_ranks_were_recorded() -> None:
    halves = sets((0, 1, 2, 3), (4, 5, 6, 7))
    known, spans = rebuild([halves, sets((*range(8),))], 8, {*range(8)})
    assert (known.shape, spans) == ((2, 4), [(1,), (0, 1)])
    assert rebuild([halves], 8, {*range(7)})[0].reason == "1 of 8 ranks was not recorded"


def test_the_common_ranks_of_groups_are_a_dimension() -> None:
    # Data and context parallelism as one group, context and tensor parallelism as another: 2 x 2 x 2.
    flat = [sets((0, 2, 4, 6), (1, 3, 5, 7)), sets((0, 1, 2, 3), (4, 5, 6, 7))]
    known, spans = rebuild(flat, 8, {*range(8)})
    assert (known.shape, spans) == ((2, 2, 2), [(0, 1), (1, 2)])


def test_members_complete_a_list_of_ranks_that_pytorch_shortened() -> None:
    assert ranks_of_group("[0, 1, ...]", 4, [2, 3, 1]) == (0, 1, 2, 3)
    assert ranks_of_group("[0, 1, ...]", 4, [1, 3]) == ()
    assert ranks_of_group("[1, 0]", 2, []) == (0, 1)
    assert (
        ranks_of_group("[0, 1]", 4, [2, 3]) == ranks_of_group("[0, 1]", -1, []) == ranks_of_group("", 2, [0, 1]) == ()
    )


# -- A job of 2 x 4 ranks ----------------------------------------------------------------------------

TENSOR, DATA = sets((0, 1, 2, 3), (4, 5, 6, 7)), sets((0, 4), (1, 5), (2, 6), (3, 7))
MIB = 1 << 20


def report_of_job(
    *, calls: int = 10, sizes: tuple[int, ...] = (MIB,), slow: float = 1.0, described: bool = True, ranks: int = 8
) -> RanksReport:
    """Return the report of a job in which the second group of four takes `slow` times as long as the first."""
    kernels: dict[int, list[CommKernel]] = {rank: [] for rank in range(8)}
    families_of_job = (("mesh_tp", "allreduce", TENSOR, 20_000), ("mesh_dp", "_reduce_scatter_base", DATA, 40_000))
    for name, collective, groups, took in families_of_job:
        for number, group in enumerate(sorted(groups)):
            description = name if described else "undefined"
            kind = CommKind(collective, f"{name}{number}", str([*group]), len(group), description=description)
            for call in range(calls):
                # Calls differ by up to 5%, and the first rank of each group is late by 1 us.
                lasts = round(took * (slow if (name, number) == ("mesh_tp", 1) else 1.0) * (1 + 0.01 * (call % 5)))
                begin = 200_000 * call + (0 if name == "mesh_tp" else 100_000)
                for rank in group:
                    start = begin + 1_000 * (rank == group[0])
                    kernel = CommKernel(kind, start, begin + 1_000 + lasts, call, 8, bytes=sizes[call % len(sizes)])
                    kernels[rank].append(kernel)
    window = (0, 200_000 * calls)
    return report_on(made_rank(rank, kernels[rank], window=window, world_size=8) for rank in range(ranks))


def communication(report: RanksReport) -> Communication:
    return report.communication


def dimension(report: RanksReport, name: str) -> CommDimension:
    (found,) = (each for each in communication(report).dimensions if each.name == name)
    return found


def test_time_is_summed_up_by_dimension() -> None:
    report = report_of_job()
    tensor, data = dimension(report, "mesh_tp"), dimension(report, "mesh_dp")
    assert (tensor.spans, tensor.groups, tensor.group_size, tensor.ranks) == ((1,), 2, 4, 8)
    assert (data.spans, data.groups, data.group_size, data.group_ranks) == ((0,), 4, 2, tuple(sorted(DATA)))
    # 10 calls on 8 ranks of 20 us and 2% on average; three of four ranks wait for 1 us.
    assert (tensor.time.transfer_ns, tensor.time.waiting_ns) == (8 * 10 * 20_400, 6 * 10 * 1_000)
    assert data.time.busy_ns == 8 * 10 * 40_800 + 4 * 10 * 1_000
    assert tensor.time.busy_ns + data.time.busy_ns == communication(report).time.busy_ns
    for row in communication(report).rows:
        assert row.dimension is not None
        assert communication(report).dimensions[row.dimension].name == row.description
    assert from_json(encode(report)) == report


def test_the_verdict_states_the_mesh_and_what_each_dimension_costs() -> None:
    report = report_of_job()
    text = judge(report).text
    assert "Mesh: 2 x 4: mesh_dp across {0, 4}, {1, 5}, ...; mesh_tp across {0 to 3}, {4 to 7}." in text
    assert "Exposed communication by dimension: mesh_dp 66.1% and mesh_tp 33.9%." in text
    shown = terminal.render(document(report, TERMINAL), width=80)
    assert "Communication by dimension" in shown and "Mesh: 2 x 4." in shown


def test_groups_without_a_description_are_named_by_their_collectives() -> None:
    names = {each.name for each in communication(report_of_job(described=False)).dimensions}
    assert names == {"allreduce groups of 4", "_reduce_scatter_base groups of 2"}


def test_dimensions_of_the_same_size_and_collectives_are_told_apart() -> None:
    kernels: dict[int, list[CommKernel]] = {rank: [] for rank in range(4)}
    for number, group in enumerate(((0, 1), (2, 3), (0, 2), (1, 3))):
        kind = CommKind("allreduce", str(number), str([*group]), 2, description="undefined")
        for rank in group:
            kernels[rank].append(CommKernel(kind, 1_000 * number, 1_000 * number + 500))
    report = report_on(made_rank(rank, kernels[rank], window=(0, 4_000), world_size=4) for rank in range(4))
    names = {each.name for each in communication(report).dimensions}
    assert names == {"allreduce groups of 2 like 0, 1", "allreduce groups of 2 like 0, 2"}


def test_a_part_of_the_mesh_that_groups_span_only_with_another_is_theirs() -> None:
    """Groups of four neighbors, and groups of every other rank, cross in pairs."""
    kernels: dict[int, list[CommKernel]] = {rank: [] for rank in range(8)}
    named = {"tp": ((0, 1, 2, 3), (4, 5, 6, 7)), "dp": ((0, 2, 4, 6), (1, 3, 5, 7))}
    for at, (name, groups) in enumerate(named.items()):
        for number, group in enumerate(groups):
            kind = CommKind("allreduce", f"{name}{number}", str([*group]), 4, description=name)
            for rank in group:
                kernels[rank].append(CommKernel(kind, 1_000 * at, 1_000 * at + 500))
    report = report_on(made_rank(rank, kernels[rank], window=(0, 4_000), world_size=8) for rank in range(8))
    assert "Mesh: 2 x 2 x 2: 2 within dp; 2 within dp and tp; 2 within tp." in judge(report).text


def test_kernels_without_a_group_are_a_dimension_only_if_they_are_judged() -> None:
    kind, nameless = CommKind("allreduce", "0", "[0, 1]", 2, description="dp"), CommKind("broadcast", recorded=False)
    for judged_from, names in ((0, {"dp", ""}), (50, {"dp"})):
        kernels = [CommKernel(nameless, 0, 10), CommKernel(kind, 100, 200)]
        ranks = [made_rank(rank, kernels, window=(0, 300), judged_from=judged_from) for rank in range(2)]
        assert {each.name for each in communication(report_on(ranks)).dimensions} == names


def test_the_mesh_of_a_partial_recording_is_unknown_but_its_dimensions_have_times() -> None:
    report = report_of_job(ranks=4)
    mesh = communication(report).mesh
    assert mesh is not None and (mesh.shape, mesh.reason) == ((), "4 of 8 ranks were not recorded")
    assert dimension(report, "mesh_tp").time.transfer_ns == 4 * 10 * 20_400
    assert "Mesh:" not in judge(report).text
    assert "The mesh is unknown: 4 of 8 ranks were not recorded." in terminal.render(
        document(report, TERMINAL), width=80
    )


def test_a_group_slower_than_its_peers_is_named_with_figures() -> None:
    report = report_of_job(slow=2.0)
    (slow,) = communication(report).slow_groups
    assert (slow.group_ranks, slow.collective, slow.count, slow.peers) == ("[4, 5, 6, 7]", "allreduce", 10, 1)
    assert slow.peers_gb_per_s == pytest.approx(1.5 * MIB / 20_400, rel=1e-3)
    assert slow.bus_gb_per_s == pytest.approx(slow.peers_gb_per_s / 2, rel=1e-3)
    assert slow.lost_ns == 10 * 20_400
    assert "Group mesh_tp1 mesh_tp [4 to 7] transfers at 38.6 GB/s, 1 other group of mesh_tp at 77.1 GB/s" in (
        judge(report).text
    )


@pytest.mark.parametrize(
    "report",
    [
        report_of_job(slow=1.2),
        report_of_job(slow=2.0, calls=7),
        report_of_job(slow=2.0, sizes=(MIB, 2 * MIB, 3 * MIB)),
    ],
    ids=["by little", "in few calls", "in few calls of each size"],
)
def test_a_group_is_not_named(report: RanksReport) -> None:
    assert communication(report).slow_groups == ()


def test_a_group_whose_few_quick_calls_make_up_for_the_others_is_not_named() -> None:
    took = np.array([0] * 4 + [126_000] * 13 + [100_000] * 17)
    transfers = Transfers(kind=np.repeat([0, 1], 17), bytes=np.full(34, MIB), took_ns=took, shortest_ns=took)
    kinds = [CommKind("allreduce", name, name, 2) for name in ("[0, 1]", "[2, 3]")]
    assert slow_groups(transfers, kinds, {0: 0, 1: 0}) == ()
    (slow,) = slow_groups(transfers.take(took > 0), kinds, {0: 0, 1: 0})
    assert (slow.group, slow.lost_ns) == ("[0, 1]", 13 * 26_000)


def test_a_file_whose_groups_are_of_no_dimension_is_refused() -> None:
    report = report_of_job(slow=2.0)
    comm = communication(report)
    (slow,) = comm.slow_groups
    for broken in (
        replace(comm, rows=(replace(comm.rows[0], dimension=2),)),
        replace(comm, slow_groups=(replace(slow, dimension=-1),)),
        replace(comm, dimensions=()),
    ):
        with pytest.raises(ValidationError, match="dimensions"):
            from_json(encode(replace(report, communication=broken)))


def test_groups_of_no_ranks_in_a_file_are_shown() -> None:
    report = report_of_job()
    comm = communication(report)
    rows, every = (tuple(replace(each, ranks=0) for each in part) for part in (comm.rows, comm.dimensions))
    strange = replace(report, communication=replace(comm, rows=rows, dimensions=every))
    assert groups_table(strange, rows=5).rows and dimensions_table(strange, rows=5).rows


def test_dimensions_that_are_exposed_together_are_said_to_be_and_unknown_groups_are_none() -> None:
    report = report_of_job()
    comm = communication(report)
    first, second = comm.dimensions
    both = replace(second, time=replace(second.time, exposed_ns=comm.time.exposed_ns))
    text = judge(replace(report, communication=replace(comm, dimensions=(first, both)))).text
    assert "mesh_dp 66.1% and mesh_tp 100%, partly at the same time." in text
    unknown = replace(second, name="", group_size=None)
    text = judge(replace(report, communication=replace(comm, dimensions=(first, unknown)))).text
    assert "Exposed communication by dimension" not in text
    nothing = replace(comm, time=replace(comm.time, exposed_ns=0))
    assert "Exposed communication by dimension" not in judge(replace(report, communication=nothing)).text
