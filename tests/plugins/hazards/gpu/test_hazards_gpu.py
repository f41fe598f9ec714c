"""The hazard checker on a GPU: wrong programs give exactly the reports they should, correct ones give none.

A comment at a line's end names it. No program depends on how fast anything is.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from overlapscope.plugins.hazards.bookkeeping import describe
from overlapscope.plugins.laboratory import catalog
from overlapscope.plugins.laboratory.experiment import Program as Prepared
from overlapscope.plugins.laboratory.experiment import Variant
from tests.plugins.hazards.programs import name_of, watched

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

N = 1 << 16
Program = Callable[[], object]
Found = list[tuple[str, str, str, int]]


def gpu_ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape or (N,), device="cuda")


def pinned_ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape or (N,)).pin_memory()


def hazards_of(program: Program) -> Found:
    """Kind, both lines by name, and count, of every hazard."""
    checker = watched(program)
    assert checker.notes == ()
    return [(h.kind, name_of(h.first.code), name_of(h.second.code), h.count) for h in checker.hazards]


# Wrong: the host ------------------------------------------------------------------------------------------------------


def read_after_to_cpu() -> None:
    host = gpu_ones().to("cpu", non_blocking=True)  # copy
    host.mean()  # access


def read_of_a_part() -> None:
    host = pinned_ones(8, 8)
    host[2:4].copy_(gpu_ones(2, 8), non_blocking=True)  # copy
    host[:, 3].sum()  # access
    host[4:].sum()


def read_of_one_number() -> None:
    host = gpu_ones().to("cpu", non_blocking=True)  # copy
    host[7].item()  # access


def read_as_a_condition() -> None:
    host = gpu_ones(1).to("cpu", non_blocking=True)  # copy
    _ = 1 if host else 0  # access


def read_by_numpy() -> None:
    host = gpu_ones().to("cpu", non_blocking=True)  # copy
    host.numpy()  # access


def read_by_asarray() -> None:
    host = gpu_ones().to("cpu", non_blocking=True)  # copy
    np.asarray(host)  # access


def read_as_a_list() -> None:
    host = gpu_ones().to("cpu", non_blocking=True)  # copy
    host.tolist()  # access


def read_by_pickle() -> None:
    host = gpu_ones().to("cpu", non_blocking=True)  # copy
    pickle.dumps(host)  # access


def read_by_save() -> None:
    host = gpu_ones().to("cpu", non_blocking=True)  # copy
    torch.save({"host": host}, io.BytesIO())  # access


def read_after_waiting_for_another_stream() -> None:
    x, host, side = gpu_ones(), pinned_ones(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host.copy_(x, non_blocking=True)  # copy
    torch.cuda.current_stream().synchronize()
    host.sum()  # access


def read_after_an_event_recorded_too_early() -> None:
    x, event = gpu_ones(), torch.cuda.Event()
    event.record()
    host = x.to("cpu", non_blocking=True)  # copy
    event.synchronize()
    host.sum()  # access


def read_after_a_foreach_copy() -> None:
    hosts = [pinned_ones(), pinned_ones()]
    torch._foreach_copy_(hosts, [gpu_ones(), gpu_ones()], non_blocking=True)  # copy
    hosts[1].sum()  # access


def read_after_a_converting_copy() -> None:
    host = gpu_ones().to("cpu", torch.float16, non_blocking=True)  # copy
    host.sum()  # access


def overwritten_source() -> None:
    source = pinned_ones()
    source.to("cuda", non_blocking=True)  # copy
    source.fill_(2)  # access


def overwritten_part_of_a_source() -> None:
    source, target = pinned_ones(), gpu_ones()
    target.copy_(source, non_blocking=True)  # copy
    source[4:8] = 3  # access


def overwritten_source_of_a_converting_copy() -> None:
    source = pinned_ones()
    source.to("cuda", torch.float16, non_blocking=True)  # copy
    source.mul_(2)  # access


def overwritten_target() -> None:
    target = pinned_ones()
    target.copy_(gpu_ones(), non_blocking=True)  # copy
    target.zero_()  # access


def _registered(host: torch.Tensor) -> Iterator[int]:
    """Pins memory where it lies."""
    address, size = host.data_ptr(), host.nbytes
    del host
    assert int(torch.cuda.cudart().cudaHostRegister(address, size, 0)) == 0
    yield address
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(address)


def freed_registered_tensor() -> None:
    host, target = torch.ones(1024), gpu_ones(1024)
    registration = _registered(host)
    next(registration)
    target.copy_(host, non_blocking=True)  # copy
    time.sleep(0.1)  # so that the hazard does no harm here
    del host  # access
    next(registration, None)


def freed_registered_array() -> None:
    array, target = np.ones(1024, np.float32), gpu_ones(1024)
    host = torch.from_numpy(array)
    registration = _registered(host)
    next(registration)
    target.copy_(host, non_blocking=True)  # copy
    time.sleep(0.1)  # so that the hazard does no harm here
    del host
    del array  # access
    next(registration, None)


def unregistered() -> None:
    host, target = torch.ones(1024), gpu_ones(1024)
    address = next(registration := _registered(host))
    target.copy_(host, non_blocking=True)  # copy
    torch.cuda.cudart().cudaHostUnregister(address)  # access
    del registration


READ, OVERWRITTEN, FREED = "read-while-copied", "overwritten-while-copied", "freed-while-copied"


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (read_after_to_cpu, READ),
        (read_of_a_part, READ),
        (read_of_one_number, READ),
        (read_as_a_condition, READ),
        (read_by_numpy, READ),
        (read_by_asarray, READ),
        (read_as_a_list, READ),
        (read_by_pickle, READ),
        (read_by_save, READ),
        (read_after_waiting_for_another_stream, READ),
        (read_after_an_event_recorded_too_early, READ),
        (read_after_a_foreach_copy, READ),
        (read_after_a_converting_copy, READ),
        (overwritten_source, OVERWRITTEN),
        (overwritten_part_of_a_source, OVERWRITTEN),
        (overwritten_source_of_a_converting_copy, OVERWRITTEN),
        (overwritten_target, OVERWRITTEN),
        (freed_registered_tensor, FREED),
        (freed_registered_array, FREED),
        (unregistered, FREED),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_host_access_that_does_not_wait_for_a_copy_is_found(program: Program, kind: str) -> None:
    assert hazards_of(program) == [(kind, "copy", "access", 1)]


def test_a_report_names_both_lines_the_tensor_the_stream_and_the_missing_call() -> None:
    (hazard,) = watched(read_after_to_cpu).hazards
    assert hazard.first.file == hazard.second.file == __file__
    assert hazard.second.line == hazard.first.line + 1
    assert hazard.tensor == f"float32[{N}] in pinned host memory" and hazard.streams == ("the default stream",)
    assert "default_stream().synchronize()" in hazard.missing
    assert "host.mean()  # access" in describe(hazard)


def test_a_hazard_in_a_loop_is_reported_once_with_a_count() -> None:
    def program() -> None:
        for _ in range(4):
            host = gpu_ones().to("cpu", non_blocking=True)  # copy
            host.sum()  # access

    assert hazards_of(program) == [(READ, "copy", "access", 4)]


# Wrong: between streams -----------------------------------------------------------------------------------------------


def written_on_default_read_on_side() -> None:
    side, x = torch.cuda.Stream(), gpu_ones()
    x.mul_(2)  # first
    with torch.cuda.stream(side):
        x.sum()  # then


def read_on_side_overwritten_on_default() -> None:
    side, x = torch.cuda.Stream(), gpu_ones()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.sum()  # first
    x.zero_()  # then


def copied_on_side_used_on_default() -> None:
    side, source = torch.cuda.Stream(), pinned_ones()
    with torch.cuda.stream(side):
        x = source.to("cuda", non_blocking=True)  # first
    x.sum()  # then


def copied_out_on_side_before_it_is_computed() -> None:
    side, host = torch.cuda.Stream(), pinned_ones()
    x = gpu_ones() * 2  # first
    with torch.cuda.stream(side):
        host.copy_(x, non_blocking=True)  # then
    torch.cuda.synchronize()


def loaded_back_before_it_is_stored() -> None:
    store, load = torch.cuda.Stream(), torch.cuda.Stream()
    x, host = gpu_ones(), pinned_ones()
    store.wait_stream(torch.cuda.current_stream())
    load.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(store):
        host.copy_(x, non_blocking=True)  # first
    with torch.cuda.stream(load):
        host.to("cuda", non_blocking=True)  # then
    torch.cuda.synchronize()


def waited_for_before_it_was_written() -> None:
    side, x = torch.cuda.Stream(), gpu_ones()
    side.wait_stream(torch.cuda.current_stream())
    x.mul_(2)  # first
    with torch.cuda.stream(side):
        x.sum()  # then


def gradient_used_on_side() -> None:
    side, weight = torch.cuda.Stream(), gpu_ones().requires_grad_()
    (weight * 2).sum().backward()  # first
    assert weight.grad is not None
    with torch.cuda.stream(side):
        weight.grad.sum()  # then


def view_of_what_another_stream_writes() -> None:
    side, x = torch.cuda.Stream(), gpu_ones(8, 8)
    side.wait_stream(torch.cuda.current_stream())
    x[2:4].zero_()  # first
    with torch.cuda.stream(side):
        x[3:].sum()  # then


@pytest.mark.parametrize(
    "program",
    [
        written_on_default_read_on_side,
        read_on_side_overwritten_on_default,
        copied_on_side_used_on_default,
        copied_out_on_side_before_it_is_computed,
        loaded_back_before_it_is_stored,
        waited_for_before_it_was_written,
        gradient_used_on_side,
        view_of_what_another_stream_writes,
    ],
    ids=lambda value: value.__name__,
)
def test_a_use_on_another_stream_that_does_not_wait_is_found(program: Program) -> None:
    reports = hazards_of(program)
    assert {report[:3] for report in reports} == {("stream-without-wait", "first", "then")}


# Right ----------------------------------------------------------------------------------------------------------------


def read_after_each_kind_of_wait() -> None:
    x, event, side = gpu_ones(), torch.cuda.Event(enable_timing=True), torch.cuda.Stream()

    def copied() -> torch.Tensor:
        host = x.to("cpu", non_blocking=True)
        event.record()
        return host

    for wait in (
        torch.cuda.synchronize,
        torch.cuda.current_stream().synchronize,
        event.synchronize,
        lambda: x.sum().item(),
        x[:1].cpu,
        x[:1].tolist,
        torch.cuda.default_stream().synchronize,
    ):
        host = copied()
        wait()
        host.sum().item(), host.numpy(), host.tolist()
    host = copied()
    while not event.query():
        pass
    host.sum()
    host = copied()
    while not torch.cuda.current_stream().query():
        pass
    host.sum()
    host = copied()
    side.wait_stream(torch.cuda.current_stream())
    side.synchronize()
    host.sum()


def pageable_and_blocking_copies() -> None:
    x, pageable, pinned = gpu_ones(), torch.ones(N), pinned_ones()
    pageable.to("cuda", non_blocking=True)
    pageable.fill_(2)
    pinned.to("cuda")
    pinned.fill_(2)
    x.cpu().sum()
    x.to("cpu", torch.float16).sum()
    pinned.copy_(x)
    pinned.sum()
    wide = pinned_ones(64, 64)
    # Torch copies to and from host memory with gaps through a temporary of its own.
    wide[:, ::2].to("cuda", non_blocking=True)
    wide[:, ::2] = 3
    wide[:, ::2].copy_(gpu_ones(64, 32), non_blocking=True)
    wide[:, ::2].sum()


def blocking_copies_on_side_streams() -> None:
    side, source = torch.cuda.Stream(), torch.ones(N)
    with torch.cuda.stream(side):
        x = source.to("cuda")
        half = source.to("cuda", torch.float16)
        y = x.mul(2)
        y.cpu()
    x.sum(), half.sum(), y.sum()
    y.zero_()


def pinned_buffers_reused_after_events() -> None:
    target = gpu_ones()
    buffers, events = [pinned_ones(), pinned_ones()], [torch.cuda.Event(), torch.cuda.Event()]
    for number in range(8):
        buffer, event = buffers[number % 2], events[number % 2]
        event.synchronize()
        buffer.fill_(number)
        target.copy_(buffer, non_blocking=True)
        event.record()


def pinned_memory_that_comes_and_goes() -> None:
    side = torch.cuda.Stream()
    for number in range(8):
        with torch.cuda.stream(side if number % 2 else torch.cuda.default_stream()):
            source = torch.full((N,), float(number), pin_memory=True)
            source.to("cuda", non_blocking=True)
            del source
            host = gpu_ones().to("cpu", non_blocking=True)
            del host
    torch.empty(N, pin_memory=True).fill_(1)


def registered_memory_freed_after_a_wait() -> None:
    host, target = torch.ones(1024), gpu_ones(1024)
    for _ in _registered(host):
        target.copy_(host, non_blocking=True)
        torch.cuda.synchronize()


def borrowed_memory_that_lives_on() -> None:
    array, target = np.ones(1024, np.float32), gpu_ones(1024)
    for _ in _registered(torch.from_numpy(array)):
        target.copy_(torch.from_numpy(array), non_blocking=True)
        torch.cuda.synchronize()


def prefetching_with_events() -> None:
    copies, ready = torch.cuda.Stream(), torch.cuda.Event()
    total = torch.zeros((), device="cuda")
    for number in range(6):
        source = torch.full((N,), float(number)).pin_memory()
        with torch.cuda.stream(copies):
            batch = source.to("cuda", non_blocking=True)
            ready.record()
        ready.wait()
        batch.record_stream(torch.cuda.current_stream())
        total += batch.sum()
    total.item()


def prefetching_into_two_buffers() -> None:
    copies, compute = torch.cuda.Stream(), torch.cuda.current_stream()
    buffers = [gpu_ones(), gpu_ones()]
    loaded, used = [torch.cuda.Event() for _ in buffers], [torch.cuda.Event() for _ in buffers]
    copies.wait_stream(compute)
    for number in range(8):
        slot = number % 2
        source = pinned_ones()
        with torch.cuda.stream(copies):
            copies.wait_event(used[slot])
            buffers[slot].copy_(source, non_blocking=True)
            loaded[slot].record()
        compute.wait_event(loaded[slot])
        buffers[slot] * 2
        used[slot].record()


def offloading_on_three_streams() -> None:
    load, store, compute = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()
    layers = [pinned_ones() for _ in range(6)]
    for _ in range(2):
        for layer in layers:
            with torch.cuda.stream(load):
                x = layer.to("cuda", non_blocking=True)
            compute.wait_stream(load)
            x.mul_(2)
            x.record_stream(compute)
            store.wait_stream(compute)
            with torch.cuda.stream(store):
                layer.copy_(x, non_blocking=True)
            x.record_stream(store)
        load.wait_stream(store)
    torch.cuda.synchronize()
    assert all(layer[0] == 4 for layer in layers)


def chunks_on_streams_of_their_own() -> None:
    streams = [torch.cuda.Stream() for _ in range(4)]
    source, result = pinned_ones(4, N), torch.empty(4, N).pin_memory()
    x = torch.empty(4, N, device="cuda")
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    for index, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            x[index].copy_(source[index], non_blocking=True)
            x[index].add_(1)
            result[index].copy_(x[index], non_blocking=True)
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    x.sum()
    torch.cuda.synchronize()
    result.sum()


def columns_on_streams_of_their_own() -> None:
    streams, x = [torch.cuda.Stream() for _ in range(2)], gpu_ones(64, 64)
    for index, stream in enumerate(streams):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x[:, index::2].mul_(2)


def memory_reused_on_another_stream() -> None:
    side = torch.cuda.Stream()
    for _ in range(8):
        x = gpu_ones()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x[3:].mul_(2)
            y = x * 2
        x.record_stream(side)
        del x, y
        torch.empty(N, device="cuda")[3:].zero_()


def _model() -> torch.nn.Sequential:
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 64)]
    return torch.nn.Sequential(*layers).cuda()


def _train(workers: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = _model()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
    loader = DataLoader(TensorDataset(torch.randn(64, 64)), batch_size=8, pin_memory=True, num_workers=workers)
    for _ in range(2):
        for (batch,) in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(batch.to("cuda", non_blocking=True)).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


def training() -> None:
    _train(workers=0)


def training_with_workers() -> None:
    _train(workers=2)


def two_forwards_and_backwards_on_streams_of_their_own() -> None:
    model, batches = _model(), [gpu_ones(8, 64), gpu_ones(8, 64)]
    streams, losses = [torch.cuda.Stream() for _ in batches], []
    for stream, batch in zip(streams, batches, strict=True):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            losses.append(model(batch).sum())
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    for loss in losses:
        loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.sum()


def activations_on_the_host() -> None:
    model = _model()
    for _ in range(3):
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = model(gpu_ones(8, 64)).sum()
        loss.backward()


def checkpointed() -> None:
    model = _model()
    for _ in range(3):
        x = gpu_ones(8, 64).requires_grad_()
        loss = checkpoint(model, x, use_reentrant=False).sum()
        loss.backward()


def captured_and_replayed() -> None:
    source, x, side = pinned_ones(), gpu_ones(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.mul(2).sum()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.copy_(source, non_blocking=True)
        y = x.mul(2)
    for number in range(3):
        source.fill_(number)
        graph.replay()
        z = y.sum()
        torch.cuda.synchronize()
        assert z.item() == 2 * number * N


def graphed_callables() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
    graphed = torch.cuda.make_graphed_callables(model, (gpu_ones(8, 64),))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        torch.as_tensor(graphed(gpu_ones(8, 64))).sum().backward()
        optimizer.step()


def compiled() -> None:
    layer = torch.nn.Linear(64, 64).cuda()
    model: Callable[[torch.Tensor], torch.Tensor] = torch.compile(lambda x: torch.relu(layer(x)).sum(), fullgraph=True)
    for _ in range(3):
        model(gpu_ones(8, 64)).backward()


@pytest.mark.parametrize(
    "program",
    [
        read_after_each_kind_of_wait,
        pageable_and_blocking_copies,
        blocking_copies_on_side_streams,
        pinned_buffers_reused_after_events,
        pinned_memory_that_comes_and_goes,
        registered_memory_freed_after_a_wait,
        borrowed_memory_that_lives_on,
        prefetching_with_events,
        prefetching_into_two_buffers,
        offloading_on_three_streams,
        chunks_on_streams_of_their_own,
        columns_on_streams_of_their_own,
        memory_reused_on_another_stream,
        training,
        training_with_workers,
        two_forwards_and_backwards_on_streams_of_their_own,
        activations_on_the_host,
        checkpointed,
        captured_and_replayed,
        graphed_callables,
        compiled,
    ],
    ids=lambda value: value.__name__,
)
def test_a_correct_program_is_not_accused(program: Program) -> None:
    checker = watched(program)
    assert [describe(hazard) for hazard in checker.hazards] == [] and checker.notes == ()


WRONG = {
    "d2h_hazard/no_sync": {READ},
    "d2h_hazard/source_overwritten": {OVERWRITTEN},
    "forward_backward/large_missing_wait": {"stream-without-wait"},
    "forward_backward/many_small_missing_wait": {"stream-without-wait"},
}
"""The laboratory's variants that are written wrong on purpose, and how."""


@pytest.mark.parametrize("name", list(catalog.shipped()))
def test_of_the_laboratorys_programs_just_the_wrong_ones_are_accused(name: str) -> None:
    experiment = catalog.load(catalog.shipped()[name]).experiment
    if experiment.gpus != 1:
        pytest.skip("needs several processes")
    if name == "pin_threads":
        pytest.importorskip("tensordict")
    kinds = {}
    for variant in experiment.variants:

        def program(variant: Variant = variant) -> None:
            prepared = experiment.prepare(**{**experiment.sizes["small"], **variant.parameters})
            whole = prepared if isinstance(prepared, Prepared) else Prepared(prepared)
            for _ in range(2):
                (whole.recorded_step or whole.step)()
            if whole.close:
                whole.close()

        kinds[f"{name}/{variant.name}"] = {hazard.kind for hazard in watched(program).hazards}
    assert {variant: reports for variant, reports in kinds.items() if reports} == {
        variant: reports for variant, reports in WRONG.items() if variant.startswith(f"{name}/")
    }


def test_training_computes_the_same() -> None:
    results: list[list[torch.Tensor]] = []
    watched(lambda: results.append(_train(workers=0)))
    results.append(_train(workers=0))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_hazards_from_before_the_start_are_not_guessed_at() -> None:
    side, x = torch.cuda.Stream(), gpu_ones()
    host = x.to("cpu", non_blocking=True)

    def program() -> None:
        host.sum()
        with torch.cuda.stream(side):
            x.sum()

    assert hazards_of(program) == []
