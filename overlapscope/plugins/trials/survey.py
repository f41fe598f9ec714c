"""Survey of the program's steps after the first: the objects and calls that can be changed, and their places."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from overlapscope.plugins.trials import protocol
from overlapscope.plugins.trials.observed import ModuleCalls, site, tensors
from overlapscope.plugins.trials.protocol import Facts, Loader, Module, Uploads
from overlapscope.plugins.trials.shims import copies
from overlapscope.plugins.trials.shims import options as torch_options
from overlapscope.plugins.trials.shims.options import is_compiled, is_of_torch
from overlapscope.recorder import devices
from overlapscope.recorder.program_lines import UNKNOWN, CodeLine
from overlapscope.recorder.sampling.facts import Collections, usable_cpus
from overlapscope.recorder.wrapping import around, together


class Survey:
    """Observes the program, which costs time. Objects of the program's own classes that fail are left out."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns()
        self._stepping = False
        self._made_at: weakref.WeakKeyDictionary[Any, CodeLine] = weakref.WeakKeyDictionary()
        """Places that made loaders and optimizers."""
        self._first: dict[int, CodeLine] = {}
        """Place of the first loader of each dataset, by the dataset's id: libraries wrap it in others."""
        self._loops: weakref.WeakKeyDictionary[Any, tuple[DataLoader[Any], CodeLine]] = weakref.WeakKeyDictionary()
        """Loader of each iterator, and the place that iterates over it."""
        self._loaders: dict[tuple[CodeLine, CodeLine], Loader] = {}
        self._batches: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        """Addresses of the latest batch's tensors, by iterator."""
        self._uploads: dict[Uploads, None] = {}
        self._threads_site: CodeLine | None = None
        self._collections = Collections()
        self._counting_ns: int | None = None
        """When collections began to count; None before."""
        self._gc_pct = 0.0
        self._modules: dict[CodeLine, Module] = {}
        self._calls: ModuleCalls | None = None
        self.end = together(
            around(Optimizer, "__init__", self._make),
            around(DataLoader, "__init__", self._make),
            around(DataLoader, "__iter__", self._iterate),
            around(_BaseDataLoaderIter, "__next__", self._next),
            copies.watch(self._upload),
            around(torch, "set_num_threads", self._set_threads),
            self._collections.stop,
        )
        """Stop observing."""

    def step(self) -> None:
        """Handle the end of a step: the second step is observed more closely."""
        if not self._stepping:
            self._stepping, self._calls = True, ModuleCalls(self._called)
        elif self._calls is not None:
            self._calls.end()
            self._calls = None
            self._collections.start()
            self._counting_ns = time.perf_counter_ns()
        elif self._counting_ns is not None:
            self._gc_pct = 100 * self._collections.pause_ns / (time.perf_counter_ns() - self._counting_ns)

    def facts(self, optimizers: Iterable[Optimizer]) -> Facts:
        """Return the facts found; `optimizers` are those that still exist."""
        cuda = devices.cuda_is_up()
        return Facts(
            cuda=cuda,
            device_name=torch.cuda.get_device_name() if cuda else None,
            cpus=usable_cpus(),
            loaders=tuple(self._loaders.values()),
            uploads=tuple(self._uploads),
            optimizers=tuple(map(self._optimizer, optimizers)),
            modules=tuple(self._modules.values()),
            gc_pct=self._gc_pct,
            threads=torch.get_num_threads(),
            threads_site=self._threads_site,
            began_ns=self._began_ns,
        )

    def _make(self, make: Callable[..., None], instance: Any, *args: Any, **options: Any) -> None:
        make(instance, *args, **options)
        with suppress(Exception):
            where = self._made_at.setdefault(instance, site(sys._getframe()))
            if isinstance(instance, DataLoader):
                self._first.setdefault(id(instance.dataset), where)

    # -- Loaders and uploads ---------------------------------------------------------------------

    def _iterate(self, iterate: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        iterator = iterate(loader)
        with suppress(Exception):
            self._loops[iterator] = loader, site(sys._getframe())
        return iterator

    def _next(self, take: Callable[..., Any], iterator: Any) -> Any:
        batch = take(iterator)
        with suppress(Exception):
            parts = [part for _, part in tensors(batch)]
            self._batches[iterator] = {part.untyped_storage().data_ptr() for part in parts if part.is_cpu}
            if self._stepping:
                self._took(*self._loops[iterator], on_gpu=any(part.is_cuda for part in parts))
        return batch

    def _took(self, loader: DataLoader[Any], loop: CodeLine, *, on_gpu: bool) -> None:
        made_at = self._first.get(id(loader.dataset)) or self._made_at.get(loader) or loop
        self._loaders[made_at, loop] = Loader(
            site=made_at,
            loop=loop,
            iterable=isinstance(loader.dataset, IterableDataset),
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            on_gpu=on_gpu,
        )

    def _upload(self, upload: copies.Upload) -> None:
        if not self._stepping:
            return
        with suppress(Exception):
            lies = upload.source.untyped_storage().data_ptr()
            kind = Uploads(
                site=site(sys._getframe()),
                method=upload.method,
                pinned=upload.source.is_pinned(),
                non_blocking=upload.non_blocking,
                from_loader=any(lies in batch for batch in self._batches.values()),
            )
            self._uploads[kind] = None

    # -- Optimizers and modules ------------------------------------------------------------------

    def _optimizer(self, optimizer: Optimizer) -> protocol.Optimizer:
        return protocol.Optimizer(
            site=self._made_at.get(optimizer) or UNKNOWN,
            name=type(optimizer).__name__,
            takes_fused=isinstance(optimizer, tuple(torch_options.with_option("fused")))
            and not torch_options.why_not(type(optimizer), optimizer.param_groups),
            fused=any(bool(group.get("fused")) for group in optimizer.param_groups),
        )

    def _set_threads(self, set_threads: Callable[[int], None], count: int) -> None:
        set_threads(count)
        with suppress(Exception):
            self._threads_site = site(sys._getframe())

    def _called(self, module: torch.nn.Module, frame: FrameType) -> None:
        where = site(frame.f_back)
        self._modules[where] = Module(
            site=where,
            name=type(module).__name__,
            compiled=is_compiled(module),
            of_torch=is_of_torch(module),
        )
