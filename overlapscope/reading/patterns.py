"""Regular expressions of names in recordings that a user states in the configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from msgspec import Struct

from overlapscope.base import config_file
from overlapscope.errors import ConfigError

Patterns = tuple[re.Pattern[str], ...]


class NamePatterns(Struct, frozen=True):
    """Lists of the configuration."""

    communication: Patterns = ()
    """Names of further communication kernels, each matched anywhere in a name."""
    server_steps: Patterns = ()
    """Names of further ranges that are a server's steps, each matched as a whole (`trace/servers.py`)."""


_of_settings: ContextVar[NamePatterns | None] = ContextVar("name_patterns", default=None)


@contextmanager
def using(patterns: NamePatterns | None) -> Iterator[None]:
    """Use these lists inside the block instead of those in the nearest configuration file, unless they are None."""
    token = _of_settings.set(patterns)
    try:
        yield
    finally:
        _of_settings.reset(token)


def name_patterns() -> NamePatterns:
    """Return the lists that are in use, by default those in the nearest configuration file; empty without a file.

    Raises:
        ConfigError: The file cannot be read, or a list is wrong.
    """
    stated = _of_settings.get()
    if stated is not None:
        return stated
    try:
        path = config_file.find(Path.cwd())
    except FileNotFoundError:
        # The current directory is gone.
        path = None
    content = None if path is None else config_file.content(path)
    return patterns_in(content or {}, lambda name: f"{path}: {name}")


def patterns_in(content: Mapping[str, Any], where: Callable[[str], str]) -> NamePatterns:
    """Return the lists in a configuration's top level. `where` returns what errors call a list.

    Raises:
        ConfigError: A list is wrong.
    """
    return NamePatterns(*(_expressions(content.get(name, ()), where(name)) for name in NamePatterns.__struct_fields__))


def _expressions(texts: object, where: str) -> Patterns:
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{where}: must be a list of regular expressions.")
    patterns = []
    for number, text in enumerate(texts):
        try:
            patterns.append(re.compile(text))
        except re.error as error:
            raise ConfigError(f"{where}[{number}]: {text!r} is not a regular expression ({error}).") from None
    return tuple(patterns)
