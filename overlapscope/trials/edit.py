"""How a person makes the changes that were tried: as edits of the program's files where it is clear what to edit, and
in words where it is not."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import libcst as cst

from overlapscope.base import disk, words
from overlapscope.catalog.changes import CHANGES
from overlapscope.trials.protocol import Facts, Setting, Site, Uploads
from overlapscope.trials.result import Edit
from overlapscope.trials.rewrite import (
    Callee,
    Compile,
    Options,
    Unclear,
    Wish,
    pinned_argument,
    pinned_receiver,
    rewrite,
)

DATA_LOADER: Final = Callee("torch.utils.data.DataLoader")
MAX_BYTES: Final = 4_000_000
"""Of a file that is edited; nobody wrote a longer one by hand."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the program, before and after the edit."""

    path: Path
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class Edits:
    """What is to be done for a set of changes."""

    files: tuple[File, ...]
    advice: tuple[str, ...]
    """What the files' edits do not do, a sentence or two each."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One thing to do at a place."""

    site: Site
    ways: tuple[Wish | Compile, ...] = ()
    """Edits that do it, of which the first that is clear is made."""
    advice: str = field(kw_only=True)
    """The same in words."""


def edit(facts: Facts, settings: tuple[Setting, ...], root: Path) -> Edit:
    """As `edits`, for a person to read."""
    found = edits(facts, settings, root)
    return Edit(diff="".join(_diff(file) for file in found.files), advice=found.advice)


def edits(facts: Facts, settings: tuple[Setting, ...], root: Path) -> Edits:
    """How these changes are made together: only files below `root`, the script's directory, or the current one are
    edited, and none of installed packages."""
    changes = frozenset(setting.change for setting in settings)
    steps = [step for setting in settings for step in _STEPS[setting.change](facts, setting.value, changes)]
    by_path: dict[str, list[_Step]] = {}
    for step in steps:
        by_path.setdefault(step.site.path, []).append(step)
    files, advice = [], []
    for path, there in by_path.items():
        before, after, reasons = _edited(Path(path), there, (root, Path.cwd()))
        if before != after:
            files.append(File(Path(path), before, after))
        advice += [_sentence(*one) for one in zip(there, reasons, strict=True) if one[1] or not one[0].ways]
    return Edits(tuple(files), tuple(dict.fromkeys(advice)))


def _edited(path: Path, steps: list[_Step], roots: tuple[Path, ...]) -> tuple[bytes, bytes, list[str]]:
    """A file before and after its edit, and why each step is not in it: empty where it is."""
    try:
        before = _source(path, roots)
        after, reasons = rewrite(before, [step.ways for step in steps])
    except Unclear as unclear:
        return b"", b"", [str(unclear)] * len(steps)
    return before, after, reasons


def _source(path: Path, roots: tuple[Path, ...]) -> bytes:
    """Raises Unclear."""
    place = path.resolve()
    if not any(place.is_relative_to(root.resolve()) for root in roots):
        raise Unclear("the file is outside of the program's directory")
    if not {"site-packages", "dist-packages"}.isdisjoint(place.parts):
        raise Unclear("the file belongs to an installed package")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Unclear("the file is too large")
        return disk.read_regular(path)
    except OSError as error:
        raise Unclear(
            "there is no such file" if isinstance(error, FileNotFoundError) else "it cannot be read"
        ) from error


def _sentence(step: _Step, reason: str) -> str:
    why = f" The diff leaves this out because {reason}." if step.ways else ""
    return f"{_where(step.site)}: {step.advice}{why}"


def _where(site: Site) -> str:
    return words.clean(f"{os.path.relpath(site.path) if os.path.isabs(site.path) else site.path}:{site.line}")


def _diff(file: File) -> str:
    """A unified diff, as git shows it."""
    name = words.clean(os.path.relpath(file.path))
    lines = difflib.unified_diff(_lines(file.before), _lines(file.after), f"a/{name}", f"b/{name}", lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _lines(source: bytes) -> list[str]:
    """Lines without their ends, made harmless; tabs stay."""
    text = cst.parse_module(source).code
    lines = ["\t".join(map(words.clean, line.removesuffix("\r").split("\t"))) for line in text.split("\n")]
    if not lines[-1]:
        return lines[:-1]
    return [*lines[:-1], f"{lines[-1]}\n\\ No newline at end of file"]


# -- what each change takes --------------------------------------------------------------------------


def _workers(facts: Facts, value: str, changes: frozenset[str]) -> Iterator[_Step]:
    options = (("num_workers", value), ("persistent_workers", "True"))
    for loader in facts.loaders:
        if not loader.iterable and not loader.on_gpu and loader.num_workers < int(value):
            yield _loader(loader.site, Options(options, positional=6), "workers", value)


def _pin(facts: Facts, value: str, changes: frozenset[str]) -> Iterator[_Step]:
    for loader in facts.loaders:
        if not loader.pin_memory and not loader.on_gpu:
            yield _loader(loader.site, Options((("pin_memory", "True"),), positional=8), "pin", value)
    for site, method in _uploads(facts, lambda one: not one.pinned and not one.from_loader):
        change = pinned_argument if method == "copy_" else pinned_receiver
        yield _in_program(site, Wish(site.line, Callee(method), change, mover=False), "pin", value)


def _loader(site: Site, options: Options, change: str, value: str) -> _Step:
    return _in_program(site, Wish(site.line, DATA_LOADER, options), change, value)


def _non_blocking(facts: Facts, value: str, changes: frozenset[str]) -> Iterator[_Step]:
    pinned = "pin" in changes
    for site, method in _uploads(facts, lambda one: not one.non_blocking and (one.pinned or pinned)):
        options = Options((("non_blocking", "True"),), positional=3 if method == "to" else 2)
        wish = Wish(site.line, Callee(method), options, alike=method != "copy_", mover=False)
        yield _in_program(site, wish, "non-blocking", value)


def _fused(facts: Facts, value: str, changes: frozenset[str]) -> Iterator[_Step]:
    options = Options((("fused", "True"),), instead_of=("foreach",))
    for one in facts.optimizers:
        if one.takes_fused and not one.fused:
            yield _in_program(one.site, Wish(one.site.line, Callee(f"torch.optim.{one.name}"), options), "fused", value)


def _graph(facts: Facts, value: str, changes: frozenset[str]) -> Iterator[_Step]:
    for module in facts.modules[:1]:
        if value == "compile":
            wish = Compile(module.site.line, module.name, "reduce-overhead")
            yield _in_program(module.site, wish, "graph", value)
        else:
            yield _Step(
                module.site, advice="Use `torch.cuda.make_graphed_callables` on the module that is called here."
            )


def _prefetch(facts: Facts, value: str, changes: frozenset[str]) -> Iterator[_Step]:
    for site in dict.fromkeys(loader.loop or loader.site for loader in facts.loaders if not loader.on_gpu):
        yield _Step(site, advice=f"{CHANGES['prefetch'].advice}")


def _late_item(facts: Facts, value: str, changes: frozenset[str]) -> Iterator[_Step]:
    for read in facts.reads:
        yield _Step(read.site, advice=CHANGES["late-item"].advice)


_STEPS: Final[Mapping[str, Callable[[Facts, str, frozenset[str]], Iterator[_Step]]]] = {
    "workers": _workers,
    "pin": _pin,
    "non-blocking": _non_blocking,
    "prefetch": _prefetch,
    "graph": _graph,
    "fused": _fused,
    "late-item": _late_item,
}


def _uploads(facts: Facts, wanted: Callable[[Uploads], bool]) -> list[tuple[Site, str]]:
    """Where those are that are wanted, each once."""
    return list(dict.fromkeys((one.site, one.method) for one in facts.uploads if wanted(one)))


def _in_program(site: Site, wish: Wish | Compile, change: str, value: str) -> _Step:
    """A change at a place; in a library's terms where the program does not make the call itself."""
    advice = CHANGES[change].advice.replace("num_workers=N", f"num_workers={value}")
    if not site.library:
        return _Step(site, (wish,), advice=advice)
    return _Step(site, advice=f"{words.clean(site.library, 80)} does this. {advice}")
