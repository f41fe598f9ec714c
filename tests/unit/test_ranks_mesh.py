"""Tests of the mesh rebuilt from process groups, compared with meshes of which the dimensions are known."""

from __future__ import annotations

from itertools import product
from math import prod

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from overlapscope.ranks.mesh import RankGroup, families, ranks_of_group, rebuild


class TrueMesh(Struct, frozen=True):
    """A mesh, and the dimensions that each family of groups spans."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    """Rank of each combination of coordinates, the last coordinate running fastest."""
    spanned: tuple[frozenset[int], ...]

    @property
    def in_order(self) -> bool:
        return self.order == tuple(range(len(self.order)))

    def groups(self, dimensions: frozenset[int]) -> set[tuple[int, ...]]:
        """Return the sets of ranks of the groups along some dimensions."""
        lines: dict[tuple[int, ...], list[int]] = {}
        for rank, at in zip(self.order, product(*map(range, self.shape)), strict=True):
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
def meshes(draw: st.DrawFn, *, in_order: bool = False) -> TrueMesh:
    shape = tuple(draw(st.lists(st.integers(2, 4), min_size=1, max_size=3)))
    ranks = [*range(prod(shape))]
    order = ranks if in_order else draw(st.one_of(st.just(ranks), st.permutations(ranks)))
    subsets = st.frozensets(st.integers(0, len(shape) - 1), min_size=1)
    return TrueMesh(shape, tuple(order), tuple(draw(st.lists(subsets, min_size=1, max_size=4, unique=True))))


@given(meshes(), st.data())
def test_the_mesh_is_right_and_if_ranks_are_missing_it_is_right_or_unknown(mesh: TrueMesh, data: st.DataObject) -> None:
    ranks = set(range(len(mesh.order)))
    recorded = ranks - data.draw(st.one_of(st.just(set()), st.sets(st.sampled_from(sorted(ranks)))))
    every = [(f"family {number}", group) for number, along in enumerate(mesh.spanned) for group in mesh.groups(along)]
    seen = [(name, group) for name, group in data.draw(st.permutations(every)) if recorded & {*group}]
    found = families([RankGroup(name, len(group), group) for name, group in seen])
    numbers = [int(seen[places[0]][0].removeprefix("family ")) for places in found]
    assert sorted(numbers) == [*range(len(mesh.spanned))] or not recorded
    sets = [{seen[place][1] for place in places} for places in found]
    result = rebuild(sets, len(ranks), recorded)
    if result.reason:
        assert recorded < ranks and not result.shape and not result.spanned
        return
    parts, told = dict(zip(numbers, result.spanned, strict=True)), mesh.told_apart()
    assert sorted(result.shape) == sorted(map(mesh.size, told))
    if mesh.in_order:
        assert result.shape == tuple(map(mesh.size, told))
    for number, along in enumerate(mesh.spanned):
        if {group for name, group in seen if name == f"family {number}"} == mesh.groups(along):
            assert prod(result.shape[place] for place in parts[number]) == mesh.size(along)
            if mesh.in_order:
                assert parts[number] == tuple(place for place, part in enumerate(told) if part & along)
        else:
            assert parts[number] == ()


@given(meshes(in_order=True), st.data())
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
    assert rebuild([halves, crossing], 8, every).reason == "the process groups cross each other in different ways"
    # Each half's rank has an opposite one, but two of one half share theirs.
    assert "cross" in rebuild([halves, sets((0, 1), (2, 4), (3, 5), (6, 7))], 8, every).reason
    assert rebuild([sets((0, 1, 2))], 8, every).reason == "no process groups divide all ranks into equal parts"
    assert rebuild([sets((0, 1, 2, 3), (4, 5, 6))], 8, every).reason.startswith("no process groups")
    assert rebuild([halves], None, every).reason == "the traces don't state the number of ranks"
    assert rebuild([sets(())], 8, every).reason == "the ranks of some process groups are unknown"
    assert rebuild([halves], 6, every).reason == "the ranks of some process groups are unknown"


def test_a_dimension_without_groups_of_its_own_is_known_if_all_ranks_were_recorded() -> None:
    halves = sets((0, 1, 2, 3), (4, 5, 6, 7))
    known = rebuild([halves, sets((*range(8),))], 8, {*range(8)})
    assert (known.shape, known.spanned) == ((2, 4), ((1,), (0, 1)))
    assert rebuild([halves], 8, {*range(7)}).reason == "1 rank of 8 were not recorded"


def test_the_common_ranks_of_groups_are_a_dimension() -> None:
    # Data and context parallelism as one group, context and tensor parallelism as another: 2 x 2 x 2.
    flat = [sets((0, 2, 4, 6), (1, 3, 5, 7)), sets((0, 1, 2, 3), (4, 5, 6, 7))]
    known = rebuild(flat, 8, {*range(8)})
    assert (known.shape, known.spanned) == ((2, 2, 2), ((0, 1), (1, 2)))


def test_members_complete_a_list_of_ranks_that_pytorch_shortened() -> None:
    assert ranks_of_group("[0, 1, ...]", 4, [2, 3, 1]) == (0, 1, 2, 3)
    assert ranks_of_group("[0, 1, ...]", 4, [1, 3]) == ()
    assert ranks_of_group("[1, 0]", 2, []) == (0, 1)
    assert (
        ranks_of_group("[0, 1]", 4, [2, 3]) == ranks_of_group("[0, 1]", -1, []) == ranks_of_group("", 2, [0, 1]) == ()
    )
