"""The search through candidates whose outcomes are known."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from overlapscope.contracts.compare import Promise
from overlapscope.plugins.ci.bisect.judge import Border, ByOrder, Found, TraceSeries, first_that_loses
from overlapscope.plugins.ci.bisect.result import BisectOutcome, Verdict


def sync(function: str, line: int = 7) -> Promise:
    name = f"host sync cudaStreamSynchronize, aten::item, train.py in {function}"
    return Promise(result="lost", part="sync", name=name, message="", line=f"train.py:{line} in {function}")


def copy(line: int) -> Promise:
    name = f"amount of H2D 16.8 MB (aten::copy_, train.py:{line})"
    return Promise(result="lost", part="amount", name=name, message="")


def found(
    history: str, losses: Mapping[str, BisectOutcome], again: Mapping[str, BisectOutcome] | None = None
) -> tuple[Found, str]:
    """Return the result of a search in which each letter is a candidate that has the outcome of that letter, and the
    verdicts in their order. `again` has outcomes of a second recording."""
    ids = [str(number) for number in range(len(history))]
    known = {number: losses.get(letter, BisectOutcome()) for number, letter in zip(ids, history, strict=True)}
    confirmed: set[str] = set()
    verdicts = []

    def tell(candidate: str, verdict: Verdict, reason: str) -> None:
        verdicts.append(f"{candidate}{verdict[0]}")

    def repeats(candidate: str, verdict: ByOrder) -> bool:
        second = (again or {}).get(candidate)
        if candidate in confirmed or second is None or verdict(second)[0] == verdict(known[candidate])[0]:
            return True
        confirmed.add(candidate)
        known[candidate] = BisectOutcome(problem="two recordings disagree")
        return False

    wanted = known[ids[-1]].lost
    candidates = TraceSeries(ids, lambda each, left: known[each], repeats)
    result = first_that_loses(candidates, (ids[0], ids[-1]), wanted, tell)
    return result, " ".join(verdicts)


A, B, C = (BisectOutcome(lost=(sync(name),)) for name in ("step", "log", "train_step"))
BROKEN = BisectOutcome(problem="it exited with code 1")


@pytest.mark.parametrize("first", range(1, 30))
def test_the_first_bad_one_is_found_with_as_few_recordings_as_a_binary_search_takes(first: int) -> None:
    result, verdicts = found("." * first + "A" * (30 - first), {"A": A})
    assert result.candidates == [str(first)]
    assert len(verdicts.split()) <= 5


@pytest.mark.parametrize("first", range(1, 12))
def test_candidates_that_cannot_be_judged_are_skipped_and_stay_in_doubt(first: int) -> None:
    history = "." * first + "x" + "A" * (12 - first)
    result, _ = found(history, {"A": A, "x": BROKEN})
    assert result.candidates == [str(first), str(first + 1)]


def test_a_loss_that_bad_keeps_is_not_the_one_that_is_searched_for() -> None:
    """Another loss came and went before."""
    first = BisectOutcome(lost=(copy(3),))
    assert found("..CCCC....AAAA", {"C": first, "A": A})[0].candidates == ["10"]


def test_of_two_losses_the_earlier_is_found_and_says_what_it_loses() -> None:
    both = BisectOutcome(lost=(sync("step"), copy(3)))
    result, _ = found("....AAAA22", {"A": A, "2": both})
    assert (result.candidates, result.lost) == (["4"], A.lost)


def test_a_line_that_moves_is_the_same_loss() -> None:
    early, late = BisectOutcome(lost=(copy(3),)), BisectOutcome(lost=(copy(14),))
    assert found("...eeelll", {"e": early, "l": late})[0].candidates == ["3"]


def test_a_loss_is_followed_through_a_function_that_was_renamed() -> None:
    result, _ = found("...AAAACCCC", {"A": A, "C": C})
    assert (result.candidates, result.lost) == (["3"], A.lost)


def test_a_second_wait_elsewhere_is_not_taken_for_a_rename() -> None:
    both = BisectOutcome(lost=(*A.lost, *B.lost))
    ids = "...AAAA2222"
    assert found(ids, {"A": A, "2": both})[0].candidates == ["3"]
    assert found("...AAAA....BBB", {"A": A, "B": B})[0].candidates == ["11"]


def test_a_verdict_that_does_not_repeat_is_no_verdict() -> None:
    """The 7th was judged bad once, and isn't."""
    result, _ = found("." * 7 + "A" + "." * 7 + "AAAA", {"A": A}, {"7": BisectOutcome()})
    assert result.candidates == ["15"]


def test_what_is_uncertain_is_skipped() -> None:
    unsure = BisectOutcome(unknown=A.lost)
    assert found("...?AAA", {"A": A, "?": unsure})[0].candidates == ["3", "4"]


def test_a_copy_that_is_gone_for_a_while_is_no_sign_of_overlap() -> None:
    """The loss is older than the commits without the copy."""
    copied = Promise(result="lost", part="overlap", name="overlap of H2D 16.8 MB (train.py:7)", message="")
    lost, without = BisectOutcome(lost=(copied,)), BisectOutcome(gone=("H2D 16.8 MB (train.py:7)",))
    assert found("..LLL---LLL", {"L": lost, "-": without})[0].candidates == ["2"]


# -- By time -----------------------------------------------------------------------------------------


def test_steps_near_the_border_take_more_runs() -> None:
    border = Border(good_ns=(100, 102, 98), bad_ns=(120, 118, 122))
    assert border.differs
    assert border.verdict(BisectOutcome(steps_ns=(101,))) == ("good", "a step takes 101 ns (1 run)")
    assert border.verdict(BisectOutcome(steps_ns=(125,))) == ("bad", "a step takes 125 ns (1 run)")
    assert border.verdict(BisectOutcome(steps_ns=(111,))) is None
    assert border.verdict(BisectOutcome(steps_ns=(111,) * 12)) == (
        "skipped",
        "a step takes 111 ns (12 runs), between both",
    )


@pytest.mark.parametrize("bad", [(100, 103, 99), (95, 80, 140), (90, 91, 92)])
def test_a_difference_within_the_noise_is_none(bad: tuple[int, ...]) -> None:
    assert not Border(good_ns=(100, 102, 98), bad_ns=bad).differs
