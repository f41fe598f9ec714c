"""Edits of a program's source for the tried changes: diffs where the edit is clear, and advice elsewhere."""

from __future__ import annotations

import difflib
import io
import os
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base import disk, words
from overlapscope.base.extras import how_to_install
from overlapscope.errors import MissingPackage

try:
    import libcst as cst
except ModuleNotFoundError:
    raise MissingPackage(f"changes are edited into programs with LibCST. {how_to_install('record')}") from None

from overlapscope.plugins.trials.changes import CHANGES, COMPILE_MODES
from overlapscope.plugins.trials.protocol import Facts, Setting, Uploads
from overlapscope.plugins.trials.result import Edit
from overlapscope.plugins.trials.rewrite import (
    DATA_LOADER,
    PIN,
    TRAINING_ARGUMENTS,
    CallOptions,
    Compile,
    Unclear,
    Wish,
    pinned_argument,
    pinned_receiver,
    rewrite,
    training_arguments,
    workers,
)
from overlapscope.recorder.program_lines import UNKNOWN, CodeLine

AHEAD: Final = """\
import itertools

import torch
from torch.utils._pytree import tree_map_only


def ahead(batches):
    stream, following = torch.cuda.Stream(), None
    for batch in itertools.chain(batches, [None]):
        here = torch.cuda.current_stream()
        here.wait_stream(stream)
        ready, following = following, None
        if batch is not None:
            with torch.cuda.stream(stream):
                following = tree_map_only(torch.Tensor, lambda x: x.to("cuda", non_blocking=True), batch)
        if ready is not None:
            tree_map_only(torch.Tensor, lambda x: x.record_stream(here), ready)
            yield ready
"""
"""Function that copies each pinned batch to the GPU during the computation with the previous batch."""
_DRAWS: Final = "A compiled module draws other random numbers with the same seed, as for dropout."
_REMARKS: Final = {
    "workers": "With `persistent_workers=True`, a seed gives other orders of batches from the second epoch on.",
    "compile": _DRAWS,
    "fuse": _DRAWS,
}
"""Differences that a shim compensates for so that results can be compared, by change or value."""
MAX_BYTES: Final = 1_000_000
"""Maximum size of a file to edit; longer files are not written by hand."""


class File(Struct, frozen=True):
    """A file of the program, before and after its edit."""

    path: Path
    before: bytes
    after: bytes


class _EditStep(Struct, frozen=True):
    """An edit at a place."""

    site: CodeLine
    ways: tuple[Wish | Compile, ...]
    """Alternative edits, of which the first clear one is made; empty if only advice is possible."""
    advice: str
    """The edit in words."""


def edits(facts: Facts, settings: tuple[Setting, ...], root: Path) -> tuple[Edit, tuple[File, ...]]:
    """Return the edits for a set of changes, in words and as files.

    Only files below `root`, the script's directory, or the current directory are edited, and no installed packages.
    """
    given = {name for setting in settings for name in (setting.change, setting.value)}
    steps = [step for setting in settings for step in _steps(facts, setting, pinned="pin" in given)]
    by_path: dict[str, list[_EditStep]] = {}
    for step in steps:
        by_path.setdefault(step.site.file, []).append(step)
    files, advice = [], []
    for path, steps_of_file in by_path.items():
        before, after, reasons = _edited(Path(path), steps_of_file, (root, Path.cwd()), facts.began_ns)
        if before != after:
            files.append(File(Path(path), before, after))
        advice += [_sentence(*pair) for pair in zip(steps_of_file, reasons, strict=True) if pair[1] or not pair[0].ways]
    edit = Edit(
        diff="".join(map(_diff, files)),
        advice=tuple(dict.fromkeys(advice)),
        code=AHEAD if any(step.advice == _LOOP_AHEAD for step in steps) else "",
        remarks=tuple(remark for reason, remark in _REMARKS.items() if reason in given),
    )
    return edit, tuple(files)


def _edited(
    path: Path, steps: list[_EditStep], roots: tuple[Path, ...], began_ns: int | None
) -> tuple[bytes, bytes, list[str]]:
    """Return a file before and after its edit, and the reason for leaving out each step, empty for the others."""
    try:
        before = _source(path, roots, began_ns)
        after, reasons = rewrite(before, [step.ways for step in steps])
    except (Unclear, RecursionError) as error:
        return b"", b"", [str(error) if isinstance(error, Unclear) else "the file is nested too deeply"] * len(steps)
    return before, after, reasons


def _source(path: Path, roots: tuple[Path, ...], began_ns: int | None) -> bytes:
    """Return the source of a file. Raises Unclear."""
    try:
        place = path.resolve()
        if not any(place.is_relative_to(root.resolve()) for root in roots):
            raise Unclear("the file is outside of the program's directory")
        if not {"site-packages", "dist-packages"}.isdisjoint(place.parts):
            raise Unclear("the file belongs to an installed package")
        state = path.stat()
        if state.st_size > MAX_BYTES:
            raise Unclear("the file is too large")
        if began_ns is not None and state.st_mtime_ns > began_ns:
            raise Unclear("the file has changed since the program was run")
        return disk.read_regular(path)
    except FileNotFoundError as error:
        raise Unclear("there is no such file") from error
    except (OSError, ValueError) as error:
        raise Unclear("the file cannot be read") from error


def _sentence(step: _EditStep, reason: str) -> str:
    why = f" The diff leaves this out because {reason}." if step.ways else ""
    where = f"{_shown(step.site.file)}:{step.site.number}: " if step.site.file else ""
    return f"{where}{step.advice}{why}"


def _shown(path: str | Path) -> str:
    """Return a path relative to the current directory if it is below that."""
    below = os.path.relpath(path) if os.path.isabs(path) else str(path)
    return words.clean(str(path) if below.startswith(os.pardir) else below)


def _diff(file: File) -> str:
    """Return a unified diff, in git's format."""
    name = _shown(file.path)
    names = (name, name) if os.path.isabs(name) else (f"a/{name}", f"b/{name}")
    lines = difflib.unified_diff(_lines(file.before), _lines(file.after), *names, lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _lines(source: bytes) -> list[str]:
    """Return lines without their ends, with control characters removed except tabs."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    text = source.decode(encoding)
    lines = ["\t".join(map(words.clean, line.removesuffix("\r").split("\t"))) for line in text.split("\n")]
    if not lines[-1]:
        return lines[:-1]
    return [*lines[:-1], f"{lines[-1]}\n\\ No newline at end of file"]


# -- Steps of each change ----------------------------------------------------------------------------


def _steps(facts: Facts, setting: Setting, *, pinned: bool) -> Iterator[_EditStep]:
    """Yield the edits for a change; `pinned` if uploads are pinned, too."""
    change, value = setting.change, setting.value
    loaders = [loader for loader in facts.loaders if not loader.on_gpu]
    match change:
        case "workers":
            for loader in loaders:
                if not loader.iterable and loader.num_workers < int(value):
                    yield _step(loader.site, setting, DATA_LOADER, workers(value))
        case "pin":
            for loader in loaders:
                if not loader.pin_memory:
                    yield _step(loader.site, setting, DATA_LOADER, PIN)
            for site, method in _uploads(facts, lambda upload: not upload.pinned and not upload.from_loader):
                yield _step(site, setting, method, pinned_argument if method == "copy_" else pinned_receiver)
        case "non-blocking":
            for site, method in _uploads(facts, lambda upload: not upload.non_blocking and (upload.pinned or pinned)):
                options = CallOptions((("non_blocking", "True"),), positional=3 if method == "to" else 2)
                yield _step(site, setting, method, options)
        case "prefetch":
            for site in dict.fromkeys(loader.loop or loader.site for loader in loaders):
                yield _at(site, setting, CHANGES["prefetch"].advice if site.library else _LOOP_AHEAD)
        case "graph":
            for module in facts.modules:
                if not module.compiled:
                    ways = (Compile(module.site.number, module.name, COMPILE_MODES[value], module.of_torch),)
                    yield _at(module.site, setting, _GRAPH[f"forward {value}" if module.of_torch else value], ways)
        case "fused":
            options = CallOptions((("fused", "True"),), instead_of="foreach")
            for optimizer in facts.optimizers:
                if optimizer.takes_fused and not optimizer.fused:
                    yield _step(optimizer.site, setting, f"torch.optim.{optimizer.name}", options)
        case "gc":
            site = next((module.site for module in facts.modules), UNKNOWN)
            yield _EditStep(site, (), CHANGES["gc"].advice)
        case "threads":
            advice = CHANGES["threads"].advice.replace("N)", f"{value})").replace("=N", f"={value}")
            yield _EditStep(facts.threads_site or UNKNOWN, (), advice)


def _uploads(facts: Facts, wanted: Callable[[Uploads], bool]) -> list[tuple[CodeLine, str]]:
    """Return the distinct places of the wanted uploads."""
    return list(dict.fromkeys((upload.site, upload.method) for upload in facts.uploads if wanted(upload)))


_LOOP_AHEAD: Final = "Put `ahead(...)`, the function below, around what this loop takes its batches from."
_GRAPH: Final = {
    "compile": 'Call `model.compile(mode="reduce-overhead")` on the module that is called here, before the first step.',
    "fuse": "Call `model.compile()` on the module that is called here, before the first step.",
    "forward compile": 'Set `model.forward = torch.compile(model.forward, mode="reduce-overhead")` for the module that '
    "is called here, before the first step: `model.compile()` does nothing where its class is one of torch's own.",
    "forward fuse": "Set `model.forward = torch.compile(model.forward)` for the module that is called here, before the "
    "first step: `model.compile()` does nothing where its class is one of torch's own.",
}


def _step(site: CodeLine, setting: Setting, callee: str, edited: Callable[[cst.Call], cst.Call]) -> _EditStep:
    """Return the edit of a call on a line."""
    called = f"`{callee.rpartition('.')[2]}`" if "." in callee else f"`.{callee}()`"
    if isinstance(edited, CallOptions):
        advice = f"Pass `{edited}` to {called}."
    else:
        advice = f"Call `.pin_memory()` on what {called} copies."
    ways = (Wish(site.number, callee, edited),)
    step = _at(site, setting, advice, ways)
    # A library may be only involved in the line's own call, and a tokenizer's batch takes the option of `.to()`.
    by_line = "." in callee or (site.library == "transformers" and callee == "to" and isinstance(edited, CallOptions))
    return replace(step, ways=(*ways, *step.ways)) if site.library and by_line else step


def _at(site: CodeLine, setting: Setting, advice: str, ways: tuple[Wish | Compile, ...] = ()) -> _EditStep:
    """Return an edit at a place; for a call that a library makes, by the library's option or in words."""
    if not site.library:
        return _EditStep(site, ways, advice)
    options = training_arguments(setting.value).get(setting.change)
    of_accelerate = site.library == "accelerate" and setting.change == "non-blocking"
    if options is None or not (site.library == "transformers" or of_accelerate):
        return _EditStep(site, (), f"{words.clean(site.library, 80)} does this for the program. {advice}")
    # Transformers' Trainer has accelerate move its batches.
    alone = "`dataloader_config=DataLoaderConfiguration(non_blocking=True)` to `Accelerator`"
    otherwise = f", or {alone} where there is no Trainer" if of_accelerate else ""
    in_words = f"Pass `{options}` to `TrainingArguments`{otherwise}."
    return _EditStep(site, (Wish(None, TRAINING_ARGUMENTS, options),), in_words)
