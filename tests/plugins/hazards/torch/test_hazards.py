"""The hazard checker without a GPU leaves the program as it is. `test_hazards_gpu.py` runs real hazards."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _gpu_trace
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from overlapscope.errors import UsageError
from overlapscope.plugins.hazards import checker as checker_module
from overlapscope.plugins.hazards.checker import HazardChecker
from overlapscope.plugins.hazards.launches import HazardMode
from tests.support import forked

aten = torch.ops.aten


@pytest.fixture
def checker() -> Iterator[HazardChecker]:
    checker = HazardChecker()
    checker.start()
    yield checker
    checker.stop()
    assert checker.hazards == () and checker.notes == ()


def train(steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(2, 3, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item(), loss.tolist(), copy.deepcopy(model), pickle.dumps(loss.detach())
    return [parameter.detach() for parameter in model.parameters()]


def test_training_computes_the_same(checker: HazardChecker) -> None:
    watched = train()
    checker.stop()
    assert all(torch.equal(a, b) for a, b in zip(watched, train(), strict=True))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: torch.zeros(2) @ torch.zeros(3),
        lambda: torch.zeros(2).view(3),
        lambda: torch.zeros(2, requires_grad=True).numpy(),
        lambda: torch.zeros(2, device="meta").tolist(),
        lambda: torch.from_numpy(3),
        lambda: torch.zeros(2).item(),
    ],
)
def test_what_the_program_does_wrong_raises_as_ever(wrong: Callable[[], object]) -> None:
    errors = []
    for watched in (False, True):
        checker = HazardChecker()
        if watched:
            checker.start()
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whichever it is, it must be the same
            wrong()
        checker.stop()
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]


def test_tensors_without_memory_of_their_own_pass(checker: HazardChecker) -> None:
    sparse = torch.eye(3).to_sparse()
    assert torch.equal((sparse @ torch.ones(3, 1)).flatten(), torch.ones(3))
    assert (torch.zeros(3, device="meta") + 1).shape == (3,)
    with torch._subclasses.FakeTensorMode():
        assert (torch.zeros(3) + 1).shape == (3,)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert torch.equal((nested + 1).values(), torch.full((5,), 2.0))
    assert torch.vmap(torch.sin)(torch.zeros(2, 2)).sum() == 0
    checker.stop()


def test_a_subclass_that_dispatches_is_asked_first_and_its_operators_are_seen(
    checker: HazardChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    seen: list[tuple[Any, type]] = []
    begin = HazardMode.begin

    def noted(self: HazardMode, operator: Any, args: Any, kwargs: Any) -> Any:
        seen.append((operator, type(args[0])))
        return begin(self, operator, args, kwargs)

    pair = TwoTensor(torch.ones(2), torch.zeros(2))
    monkeypatch.setattr(HazardMode, "begin", noted)
    assert isinstance(pair + 1, TwoTensor)
    assert seen == [(aten.add.Tensor, torch.Tensor)] * 2


def test_compiled_functions_stay_compiled(checker: HazardChecker) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: torch.relu(x) * 2, backend=backend, fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert len(graphs) == 1


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_higher_order_operators_pass(checker: HazardChecker) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    query, key, value = (torch.ones(1, 1, 16, 16) for _ in range(3))
    assert torch.allclose(torch.as_tensor(flex_attention(query, key, value)), value)


class Checkers(torch.utils.data.Dataset[int]):
    """Return the number of checkers in this process."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return len(checker_module._running)


def test_workers_of_a_data_loader_run_unwatched(checker: HazardChecker) -> None:
    loader = torch.utils.data.DataLoader(Checkers(), num_workers=1, multiprocessing_context="fork")
    assert [int(count) for count in loader] == [0, 0, 0, 0] and Checkers()[0] == 1


WRAPPED = [
    (torch.Tensor, "numpy"),
    (torch.Tensor, "tolist"),
    (torch.Tensor, "__reduce_ex__"),
    (torch.cuda.Event, "query"),
    (torch.cuda.Stream, "query"),
    (torch, "from_numpy"),
    (torch.distributed.Work, "is_completed"),
    (torch.distributed.Work, "wait"),
]


def test_everything_is_as_before_when_it_has_stopped() -> None:
    before = [(getattr(owner, name), name in vars(owner)) for owner, name in WRAPPED]
    for _ in range(2):
        checker = HazardChecker()
        checker.start()
        assert torch.Tensor.numpy is not before[0][0]
        checker.stop()
        checker.stop()
        assert [(getattr(owner, name), name in vars(owner)) for owner, name in WRAPPED] == before
        assert _get_current_dispatch_mode_stack() == []
    assert len(_gpu_trace.EventRecordCallbacks.callback_list) <= 2


def test_a_mode_that_the_program_entered_meanwhile_is_not_taken_off_with_ours() -> None:
    class Theirs(TorchDispatchMode):
        calls = 0

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Theirs.calls += 1
            return func(*args, **(kwargs or {}))

    checker = HazardChecker()
    checker.start()
    (ours,) = _get_current_dispatch_mode_stack()
    with Theirs():
        checker.stop()
        torch.ones(2)
        assert Theirs.calls
    assert _get_current_dispatch_mode_stack() == [ours]
    torch.ones(2)
    ours.__exit__(None, None, None)


def test_there_is_one_checker_at_a_time(checker: HazardChecker) -> None:
    with pytest.raises(UsageError, match="already"):
        HazardChecker().start()


def test_an_error_of_the_checkers_own_ends_the_search_and_not_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from overlapscope.plugins.hazards import launches

    checker = HazardChecker()
    checker.start()
    monkeypatch.setattr(launches, "tensors_used", lambda *_: 1 / 0)
    assert torch.ones(2).sum() == 2
    checker.stop()
    (note,) = checker.notes
    assert "ended early" in note and "ZeroDivisionError" in note


def test_starting_initialises_no_cuda(tmp_path: Path) -> None:
    code = """
import torch
from overlapscope.plugins.hazards.checker import HazardChecker
checker = HazardChecker()
checker.start()
torch.ones(2).sum()
assert not torch.cuda.is_initialized()
checker.stop()
assert not torch.cuda.is_initialized()
"""
    done = forked.run(["-c", code], tmp_path, unloads=False)
    assert done.returncode == 0, done.stderr
