"""Tests of choosing steps from logs of events."""

from __future__ import annotations

from random import Random

import pytest

from overlapscope.recorder.step_choice import Log, SourceKind, StepChoice, StepSource, choose

MS = 1_000_000
CRITIC, GENERATOR = (StepSource(SourceKind.OPTIMIZER, f"{name}.step") for name in ("Adam", "SGD"))
MODEL = StepSource(SourceKind.FORWARD, "Model.forward", size=1000)
HEAD = StepSource(SourceKind.FORWARD, "Head.forward", size=10)
BATCH = StepSource(SourceKind.LOADER, "a DataLoader of Data")


def log_of(*sources: StepSource, apart_ns: int = MS) -> Log:
    log = Log()
    for index, source in enumerate(sources):
        log.add(source, index * apart_ns)
    return log


def chosen(log: Log, kind: SourceKind = SourceKind.OPTIMIZER) -> StepChoice | None:
    return choose(log, kind, log.events[kind][-1].at_ns)


def test_seven_steps_of_an_optimizer_are_too_few_and_eight_are_enough() -> None:
    assert chosen(log_of(*[MODEL, CRITIC] * 7)) is None
    choice = chosen(log_of(*[MODEL, CRITIC] * 8))
    assert choice is not None and (choice.label, choice.each) == ("calls of Adam.step", 1)


@pytest.mark.parametrize("updates", [1, 2, 5, 30])
def test_the_optimizer_that_steps_once_ends_a_cycle(updates: int) -> None:
    cycle = [MODEL, CRITIC] * updates + [MODEL, GENERATOR]
    choice = chosen(log_of(*cycle * 3))
    assert choice is not None and choice.source == GENERATOR
    assert choice.label == f"calls of SGD.step, {updates + 1} optimizer steps in turn"


@pytest.mark.parametrize("updates", [2, 4, 16, 40])
def test_updates_after_a_rollout_are_one_step_that_ends_before_the_next_rollout(updates: int) -> None:
    rollout, update = [MODEL] * 50, [MODEL, CRITIC]
    program = (rollout + update * updates) * 4
    assert chosen(log_of(*rollout, *update * min(updates, 12))) is None
    for left_out in range(updates):
        choice = chosen(log_of(*program[: len(program) - 2 * left_out]))
        assert choice is not None and (choice.each, choice.source) == (updates, CRITIC)
        assert choice.begun == (updates - left_out) % updates


def test_rollouts_of_different_length_make_steps_too() -> None:
    program = [source for length in range(40, 60) for source in [MODEL] * length + [MODEL, CRITIC] * 4]
    choice = chosen(log_of(*program))
    assert choice is not None and choice.each == 4


def test_an_evaluation_after_each_epoch_is_not_part_of_a_step_if_each_update_has_a_batch() -> None:
    epoch = [BATCH, MODEL, CRITIC] * 10 + [MODEL] * 20
    for epochs in (1, 4):
        choice = chosen(log_of(*epoch * epochs, *epoch[:9]))
        assert choice is not None and choice.each == 1


def test_an_evaluation_before_the_training_is_not_a_rollout() -> None:
    start = [MODEL] * 100
    assert chosen(log_of(*start, *[MODEL, CRITIC] * 40)) is None
    choice = chosen(log_of(*start, *[MODEL, CRITIC] * 50))
    assert choice is not None and choice.each == 1
    slow = chosen(log_of(*start, *[MODEL, CRITIC] * 20, apart_ns=1000 * MS))
    assert slow is not None and slow.each == 1


def test_optimizers_that_step_at_random_are_steps_each() -> None:
    program = Random(1).choices((CRITIC, GENERATOR), k=200)
    choice = chosen(log_of(*program, apart_ns=200 * MS))
    assert choice is not None and choice.each == 1


def test_of_several_modules_the_largest_counts() -> None:
    assert chosen(log_of(*[MODEL, HEAD, HEAD] * 4), SourceKind.FORWARD) == StepChoice(
        SourceKind.FORWARD, "calls of Head.forward", source=HEAD
    )
    choice = chosen(log_of(*[MODEL, HEAD, HEAD] * 5), SourceKind.FORWARD)
    assert choice is not None and choice.source == MODEL


def test_layers_that_are_called_one_after_the_other_are_steps_by_their_class() -> None:
    layers = [StepSource(SourceKind.FORWARD, "Block.forward") for _ in range(12)]
    choice = chosen(log_of(*layers), SourceKind.FORWARD)
    assert choice is not None and choice.counts(layers[3]) and choice.label == "calls of Block.forward"
