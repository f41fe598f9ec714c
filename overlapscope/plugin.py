"""Plugins: what each adds to the core, as manifests of strings that are imported only when used.

A plugin of this package is a folder in `overlapscope/plugins` whose `__init__.py` holds nothing but a `Plugin` named
`PLUGIN`; its command, page and so on are modules beside it. The core finds the folders, and names none of them. Another
package registers its `Plugin` as an entry point of the group `overlapscope.plugins`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple, Protocol

from overlapscope.errors import UsageError
from overlapscope.installed import GROUP, built_in_names, others_registered

Place = str
"""An object, as `package.module:name`, or a module, as `package.module`."""


class Extra(NamedTuple):
    """An extra of `project.optional-dependencies`."""

    modules: tuple[str, ...]
    """Names under which its packages are imported."""
    serves: str
    """Feature that needs the extra."""
    brings: str = ""
    """Sentences on its large packages, measured with the versions in requirements/ci.txt."""
    programs: tuple[str, ...] = ()
    """Packages that have a program and no module, and without which the feature works in part."""


class Command(NamedTuple):
    """A subcommand, which `overlapscope --help-all` lists."""

    name: str
    summary: str
    """Its line in the list."""
    place: Place
    """Class with the methods of `commands.Subcommand`."""
    group: str = ""
    """Title of its group in `overlapscope --help`. Without one, only `--help-all` lists it."""
    reads: bool = False
    """True if it computes on recordings, and runs no program of the user."""


class RunOption(NamedTuple):
    """An option with which `overlapscope run` runs a program, and records nothing."""

    flag: str
    help: str
    place: Place
    """Function without arguments to call before the program runs."""


class PluginPage(NamedTuple):
    """A page of the dashboard. It is offered if the plugin's extra is installed."""

    name: str
    """Its path."""
    title: str
    place: Place
    """Module with `layout` and `callbacks`, as those of `dashboard.pages`."""
    files: str = ""
    """Name of files in the given directories that the page shows, if it is not about a trace. Without any, it isn't
    offered."""
    option: str = ""
    """Help of the option `--NAME PATH` of `overlapscope dashboard`, which says what the page shows, if that is not a
    trace."""
    data: Place | None = None
    """Function of the option's argument, or None, that returns what the page shows: an object with `is_empty`, or None.
    It raises OverlapscopeError."""
    state: tuple[str, ...] = ()
    """Its own choices in the address (`UrlState.choices`)."""


class Recorder(NamedTuple):
    """A program that records, with the id that its traces state (`Trace.recorder`)."""

    id: str
    name: str
    gpu_activity: str
    """Option that records GPU activity, as in `recorded without ...`."""
    launches: str
    """How to record launches, in a sentence."""
    sync_events: str
    """How to record waits between streams, in a sentence."""
    host_ops: str = "ops"
    """Name of the host's ops that it records."""


KINETO: Final = Recorder(
    "kineto",
    "torch.profiler",
    gpu_activity="ProfilerActivity.CUDA",
    launches="Record with ProfilerActivity.CPU and ProfilerActivity.CUDA.",
    sync_events="Record with enable_cuda_sync_events=True.",
)


class TraceSource(NamedTuple):
    """A kind of recording."""

    recorder: Recorder
    suffixes: tuple[str, ...]
    """Lower-case endings of the files to find in a directory. A file named by the user may have any name."""
    sign: bytes
    """Regular expression that matches the beginning of such a file, up to 64 KiB of its unpacked content."""
    read: Place
    """Function of a path and a `reading.source.ReadRequest` that returns the Trace."""
    parts: Place | None = None
    """Function of a path that returns the number of processes recorded in the file, if there may be several. Each is
    then read by its number, as `FILE@0`, `FILE@1`."""
    packed: str = ""
    """Ending of files that `unpack` turns into such a file."""
    unpack: Place | None = None
    """Function of a path and of the file to write. It raises UnreadableTrace."""
    runs: str = ""
    """Pattern of the folders below a directory that have a recording each, by time. The last is read."""
    copies: tuple[str, ...] = ()
    """Names of other files in such a folder with the same recording in less detail; `*` stands for its name without
    suffix."""


class Skill(NamedTuple):
    """Addition of a plugin to the skill file for assistants."""

    questions: tuple[tuple[str, str], ...]
    """Questions of users, each with the command line that answers it."""
    text: str
    """Markdown of a section on how to use it."""


class ObserverOption(NamedTuple):
    """An observer of recorded programs. In Python, the name of its plugin asks for it."""

    flag: str
    """Option of `overlapscope run` that asks for it."""
    help: str
    place: Place
    """Class without arguments that has the methods of `Observer`."""


class Observer(Protocol):
    """Something that watches a program while it is recorded. It raises nothing there, and prints nothing."""

    def start(self) -> None:
        """Begin."""

    def stop(self, *, early: bool = False) -> None:
        """End, on the thread that began, unless it has ended. With `early`, the program goes on unwatched."""

    @property
    def count(self) -> int | None:
        """Number of things found; None if it could not look for any."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on parts of the program that it left out."""

    def report(self) -> tuple[str, Sequence[str]]:
        """Return a sentence on the result, and a text of some lines for each thing that was found."""


class Plugin(NamedTuple):
    """The manifest of a plugin."""

    name: str
    """Name of its folder, and of its extra."""
    extra: Extra | None = None
    check: Place | None = None
    """Function without arguments that raises MissingPackage if the installed extra doesn't work."""
    commands: tuple[Command, ...] = ()
    pages: tuple[PluginPage, ...] = ()
    sources: tuple[TraceSource, ...] = ()
    rules: Mapping[str, Place] = {}
    """A `rules.rule.Rule` for each id, which the built-in rules don't have. Its texts lie next to its module, as
    `rules.explained` says."""
    measures: Place | None = None
    """Tuple of `catalog.measures.Measure`."""
    observer: ObserverOption | None = None
    kinds: Mapping[str, str] = {}
    """Kinds of the JSON files that it writes, each with a description such as `a report of ranks`."""
    signs: Mapping[str, bytes] = {}
    """Regular expressions for the first 128 bytes of its other files, by kind."""
    tools: Place | None = None
    """Function of a `tools.Server` that returns tools for assistants, as functions with annotations of pydantic."""
    skill: Place | None = None
    """Function without arguments that returns a `Skill`."""
    jobs: Place | None = None
    """Module that predicts the step of a job for `overlapscope whatif` (`commands.whatif.JobPredictor`)."""
    ranks: Place | None = None
    """Module with a part of reports of ranks (`ranks.parts.RankPart`)."""
    words: Place | None = None
    """Function without arguments that returns words for `overlapscope explain`, each as a `glossary.GlossaryEntry`."""
    schemas: Mapping[str, Place] = {}
    """Structures of JSON whose schemas `overlapscope schema` prints, by kind."""
    servers: Place | None = None
    """Function that has a server record itself, for `overlapscope record --url` (`plugins.serving.client`)."""
    remedies: Mapping[str, Place] = {}
    """Functions of a server's name, as in `trace.servers.MARKS`, that return advice for it, by rule."""
    run: RunOption | None = None
    after_torch: Mapping[str, Place] = {}
    """Functions to call when a program has imported torch, by the environment variable that asks for it. They get its
    value, unless it is empty or `0`."""
    captures: str | None = None
    """Variable of `after_torch` whose value is a directory for recordings of the captures of CUDA graphs."""
    baseline: Place | None = None
    """Module that finds baselines for `overlapscope check` (`commands.check.BaselineSource`)."""
    keeper: Place | None = None
    """Module that keeps reports and predictions of other plugins (`report.origin.Keeper`)."""
    api: Mapping[str, Place] = {}
    """Names in `import overlapscope`, for plugins of this package."""


def plugins() -> Iterator[Plugin]:
    """Yield all plugins: the built-in ones by name, then those of other packages.

    Raises:
        UsageError: Another package's plugin can't be imported, or is not a `Plugin`.
    """
    yield from built_in()
    yield from installed_plugins()


@cache
def built_in() -> tuple[Plugin, ...]:
    """Return the plugins of this package, by name."""
    return tuple(importlib.import_module(f"{GROUP}.{name}").PLUGIN for name in built_in_names())


def sources() -> Iterator[TraceSource]:
    """Yield the sources of this package's plugins. Ascend's, whose files end as Kineto's, comes last."""
    for plugin in reversed(built_in()):
        yield from plugin.sources


def observers() -> dict[str, ObserverOption]:
    """Return the observers of recorded programs, by the names of their plugins."""
    return {plugin.name: plugin.observer for plugin in plugins() if plugin.observer is not None}


@cache
def installed_plugins() -> tuple[Plugin, ...]:
    """Return the plugins that other packages register as entry points.

    Raises:
        UsageError: One of them can't be imported, or is not a `Plugin`.
    """
    if not others_registered():
        return ()
    from importlib.metadata import entry_points

    found = []
    for entry in entry_points(group=GROUP):
        named = f"the plugin {entry.name} ({entry.value})"
        try:
            loaded = entry.load()
        except Exception as error:
            raise UsageError(
                f"{named} cannot be loaded ({type(error).__name__}: {error}); update or uninstall its package."
            ) from error
        if not isinstance(loaded, Plugin):
            raise UsageError(f"{named} is not an {__name__}.Plugin; update or uninstall its package.")
        found.append(loaded)
    return tuple(found)


def recorder_by_id(id: str) -> Recorder:
    """Return the record of a recorder; generic words for an unknown one."""
    of_plugins = (source.recorder for each in plugins() for source in each.sources)
    return next((recorder for recorder in (KINETO, *of_plugins) if recorder.id == id), None) or Recorder(
        id,
        id,
        gpu_activity="GPU activity",
        launches="Record the calls of the CUDA runtime too.",
        sync_events="Record synchronization events, if the profiler can.",
    )
