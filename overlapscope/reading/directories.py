"""Directories in which a profiler writes several recordings, or one in several formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from overlapscope.base.words import plural
from overlapscope.plugin import TraceSource, sources


def run_in(directory: Path, readable: Callable[[Path], bool] = Path.exists) -> tuple[Path, list[str]]:
    """Return the newest recording below a profiler's directory, and a sentence on older ones.

    Any other directory is returned unchanged. `readable` excludes recordings that must not be opened.
    """
    for source in _sources():
        runs = sorted(run for run in directory.glob(source.runs) if readable(run) and _has_any(run, source))
        if runs:
            left_out = f"{plural(len(runs) - 1, 'older recording')} in {Path(source.runs).parent} left out"
            return runs[-1], [f"{directory}: {left_out}; name its directory."] if runs[1:] else []
    return directory, []


def without_copies(files: list[Path]) -> list[Path]:
    """Return the files of a directory without those that lie beside the same recording in more detail."""
    copies = {
        copy.replace("*", file.name.removesuffix(suffix))
        for source in _sources()
        for suffix in source.suffixes
        for file in files
        if file.name.endswith(suffix)
        for copy in source.copies
    }
    return [path for path in files if path.name not in copies]


def _sources() -> Iterable[TraceSource]:
    return (source for source in sources() if source.runs)


def _has_any(run: Path, source: TraceSource) -> bool:
    return any(any(run.glob(f"*{suffix}")) for suffix in source.suffixes)
