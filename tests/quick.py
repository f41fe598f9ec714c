"""Run the tests that a change can break, nearest first, for some 20 seconds: `python -m tests.quick [PYTEST OPTIONS]`.

A change can break every test file that reaches it through imports. Such a file is stale until it passes again; passes
are noted by `tests.support.outcomes`. Without a note, a file is held against the merge base with the main branch. Most
test files reach most of the package, so stale files run in the order of their distance from the change, counted in
imports, until the time is used up; those that quote what commands print come first. The others stay stale and run
next time.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import grimp
import msgspec
import pytest

from overlapscope.commands import commands, place_of
from tests.support.outcomes import ROOT, FileOutcome, git, read_outcomes, working_tree
from tests.support.scheduler import cores

LONG = ("browser", "evaluation", "exhaustive", "gpu", "package")
"""Rooms whose files take too long."""
SECONDS = 20.0
"""Wall time that the tests may take; starting them takes some seconds more."""
QUOTING = ("tests/core/project/test_docs.py", "tests/core/report/test_golden.py")
"""Files with what commands print: the first that a change of words or figures breaks, however far it is in imports."""
GUESSES = {"process": 10.0, "torch": 10.0}
"""Seconds of a test file that was never timed, by room; 2 seconds in others."""
OWN_MODULE = re.compile(r"\b(?:overlapscope|tests|benchmarks)(?:\.\w+)+")
"""Modules of this repository that a text names, as programs in strings do."""
QUOTED_WORD = re.compile(r"""["'](\w+)["']""")


class Stale(msgspec.Struct, frozen=True):
    """A test file that a change can break."""

    distance: int
    """Number of imports between the change and the test; 0 if the test itself has changed, or quotes outputs."""
    seconds: float
    file: str


class Reach:
    """Modules that each test file reaches, by the graph of imports.

    Tests also reach the modules named by programs in their strings, the subcommands whose names they quote (most start
    `overlapscope COMMAND`), and the `conftest.py` files above them. A package reaches its modules, since registries
    import them by name.
    """

    def __init__(self) -> None:
        graph = grimp.build_graph("overlapscope", "tests", "benchmarks", cache_dir=None)
        self._graph = graph
        self._texts = {file: (ROOT / file).read_text() for file in _python_files("tests")}
        for module in list(graph.modules):
            for child in graph.find_children(module) if module != "overlapscope" else ():
                graph.add_import(importer=module, imported=child)
        for file, text in self._texts.items():
            for reached in (*self._named(text), *self._conftests(file)):
                graph.add_import(importer=module_of(file), imported=reached)

    def distances(self, changed: Iterable[str]) -> dict[str, int]:
        """Return, by test file, the number of imports between it and the nearest of the changed files."""
        test_of = {module_of(file): file for file in self._texts if Path(file).name.startswith("test_")}
        near_files: dict[str, int] = {}
        level: set[str] = set()
        for path in changed:
            if (module := self._module_of_any(path)) is not None:
                level.add(module)
            else:
                near_files |= {file: 2 for file in test_of.values() if self._names_directory_of(file, path)}
                near_files |= {file: 1 for file in test_of.values() if Path(path).name in self._texts[file]}
        seen: set[str] = set()
        distance = 0
        while level:
            for module in level & test_of.keys():
                near_files[test_of[module]] = min(distance, near_files.get(test_of[module], distance))
            seen |= level
            level = {importer for module in level for importer in self._graph.find_modules_that_directly_import(module)}
            level -= seen
            distance += 1
        return near_files

    def _named(self, text: str) -> Iterator[str]:
        for dotted in set(OWN_MODULE.findall(text)):
            while "." in dotted and dotted not in self._graph.modules:
                dotted = dotted.rpartition(".")[0]
            if "." in dotted:
                yield dotted
        if "overlapscope" in text:
            for command in commands().keys() & set(QUOTED_WORD.findall(text)):
                yield str(place_of(command)).partition(":")[0]

    def _conftests(self, file: str) -> Iterator[str]:
        modules = {".".join((*folder.parts, "conftest")) for folder in Path(file).parents}
        return iter(modules & self._graph.modules - {module_of(file)})

    def _names_directory_of(self, file: str, path: str) -> bool:
        return any(f'"{part}"' in self._texts[file] for part in Path(path).parts[:-1] if part != "tests")

    def _module_of_any(self, path: str) -> str | None:
        """Return the module of a file; of another file inside the package, the innermost package around it."""
        place = Path(path)
        if place.suffix == ".py":
            module = module_of(path)
            return module if module in self._graph.modules else None
        if place.parts[0] != "overlapscope":
            return None
        return next(module for parent in place.parents if (module := ".".join(parent.parts)) in self._graph.modules)


def module_of(file: str) -> str:
    """Return the dotted name of a Python file, whose path is relative to the root."""
    return ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")


def stale_files(outcomes: Mapping[str, FileOutcome]) -> list[Stale]:
    """Return the test files that changes since they last passed can break, nearest first."""
    reach, now = Reach(), working_tree()
    distances: dict[str, dict[str, int]] = {}
    stale = []
    for file in _python_files("tests"):
        room = Path(file).parent.name
        if room in LONG or not Path(file).name.startswith("test_"):
            continue
        outcome = outcomes.get(file)
        since = outcome.tree if outcome and outcome.tree and _exists(outcome.tree) else _merge_base()
        if since not in distances:
            distances[since] = reach.distances(git("diff", "--name-only", since, now).splitlines())
        if (distance := distances[since].get(file)) is not None:
            seconds = outcome.seconds if outcome else GUESSES.get(room, 2.0)
            stale.append(Stale(0 if file in QUOTING else distance, seconds, file))
    return sorted(stale, key=lambda file: (file.distance, file.seconds))


def affordable(stale: Iterable[Stale], seconds: float) -> list[str]:
    """Return the files that fit into so many seconds of tests, nearest first, and at least the nearest."""
    chosen: list[str] = []
    for file in stale:
        if not chosen or file.seconds <= seconds:
            chosen.append(file.file)
            seconds -= file.seconds
    return chosen


def main(options: list[str]) -> int:
    """Run the tests and return pytest's exit code."""
    try:
        stale = stale_files(read_outcomes())
    except (OSError, subprocess.CalledProcessError):
        sys.exit("make quick asks git what has changed, and this is no checkout with git: use make unit.")
    chosen = affordable(stale, SECONDS * cores())
    if not chosen:
        print("No test file can be broken by what has changed since it last passed.")
        return 0
    which = "all of them" if len(chosen) == len(stale) else f"the {len(chosen)} nearest (`make unit` runs more)"
    print(f"Changes since they last passed can break {len(stale)} test files: running {which}.", flush=True)
    return pytest.main(["-p", "tests.support.outcomes", *options, *chosen])


def _python_files(folder: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py"))


@cache
def _exists(tree: str) -> bool:
    try:
        git("cat-file", "-e", tree)
    except subprocess.CalledProcessError:
        return False
    return True


@cache
def _merge_base() -> str:
    for branch in ("origin/main", "main"):
        try:
            return git("merge-base", "HEAD", branch)
        except subprocess.CalledProcessError:
            continue
    return "HEAD"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
