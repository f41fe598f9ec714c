"""Tests of which lines of a program read values that may come a step later: those that only add, keep or show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlapscope.plugins.trials.late_values import why_not, why_not_in

MORE = "does more with the value"


@pytest.mark.parametrize(
    "line",
    [
        "total += loss.item() * x.size(0)",
        "self.correct += (out.argmax(1) == y).sum().item()",
        "print('loss', loss.item(), flush=True)",
        "print(f'{step}: {loss:.3f}')",
        "log.info('%s', round(float(loss), 3))",
        "losses.append(float(loss))",
        "meter.update(loss.item(), len(x))",
        "bar.set_postfix(loss=loss.item())",
        "wandb.log({'train': {'loss': loss.item()}, 'step': step})",
        "value = loss.item(); total += value; print(value)",
        "if step % 10 == 0: print(loss.item())",
        "total = total + loss.item()",
        "ema = 0.9 * ema + 0.1 * loss.item()\nprint(ema)",
        "total += loss.item()\nmean = total / len(data)\nprint(f'{mean:.2f}')\ntotal = 0",
        "sums['loss'] += loss.item()\nprint(sums['loss'] / 10)\nsums['loss'] = 0",
        "losses.append(loss.item())\nprint(sum(losses) / len(losses), losses[-1])\nlosses.clear()",
        "meter.update(loss.item())\nprint(f'{meter.avg:.2f}')\nmeter.reset()",
    ],
)
def test_what_is_added_kept_or_shown_may_come_later(line: str) -> None:
    assert why_not_in(line, 1) == ""


@pytest.mark.parametrize(
    "line",
    [
        "if loss.item() > 3: stop()",
        "while float(loss) > 1: step()",
        "scheduler.step(loss.item())",
        "values = [one.item() for one in losses]",
        "total *= loss.item()",
        "best = min(best, loss.item())",
        "value = loss.item()\nprint(value)\nif value > 3: stop()",
        "def compute():\n    value = 1; return loss.item()",
        "print(loss.item()); assert loss.item() < 3",
        "total += loss.item()\nif total > 3: stop()",
        "total += loss.item()\nscheduler.step(total / 10)",
        "value = loss.item(); total += value\nif total > 3: stop()",
        "first = second = loss.item()\nif second > 3: stop()",
        "def train():\n    total = 0\n    total += loss.item()\n    return total",
        "def train():\n    global total\n    total += loss.item()\ndef stops(): return total > 3",
        "def add(self):\n    self.total += loss.item()\ndef stops(self): return self.total > 3",
        "sums['loss'] += loss.item()\nif sums['loss'] > 3: stop()",
        "losses.append(loss.item())\nif losses[-1] > 3: stop()",
        "self.losses.append(loss.item())\nbest = min(self.losses)",
        "meter.update(loss.item())\nif meter.avg > 3: stop()",
        "table[loss.item()] = 1",
    ],
)
def test_what_decides_or_is_returned_may_not(line: str) -> None:
    reads = next(number for number, text in enumerate(line.splitlines(), 1) if "item()" in text or "float(" in text)
    assert MORE in why_not_in(line, reads)


def test_a_name_of_another_function_is_another_name() -> None:
    program = "def train():\n    value = loss.item()\n    print(value)\ndef other(value):\n    return value > 3\n"
    assert why_not_in(program, 2) == ""


def test_what_cannot_be_looked_at_must_come_at_once(tmp_path: Path) -> None:
    assert why_not("<string>", 1) == "The program's source is not at hand."
    assert why_not_in("def :", 1) == "The program's source is not at hand."
    assert "shows no" in why_not_in("x = 1", 1)
    script = tmp_path / "train.py"
    script.write_text("\nprint(loss.item())\n")
    assert why_not(str(script), 2) == ""
