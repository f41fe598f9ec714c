"""Configuration files: `overlapscope.toml`, or `[tool.overlapscope]` of a pyproject.toml."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overlapscope.base import disk
from overlapscope.errors import ConfigError

FILE, PROJECT = "overlapscope.toml", "pyproject.toml"


def find(start: Path) -> Path | None:
    """Return the nearest configuration file, in a directory or one of its parents.

    This is an `overlapscope.toml`, or a pyproject.toml that has `[tool.overlapscope]`.

    Raises:
        ConfigError: A file on the way cannot be read.
    """
    for directory in (start, *start.parents):
        dedicated, project = directory / FILE, directory / PROJECT
        for path in filter(os.path.lexists, (dedicated, project)):
            if not path.is_file():
                raise ConfigError(
                    f"{path}: is not a file, or a link to nothing; repair it, or name a file by --config."
                )
        if dedicated.exists():
            return dedicated
        if project.exists() and content(project) is not None:
            return project
    return None


def content(path: Path) -> Mapping[str, Any] | None:
    """Return the content of a configuration file; None for a pyproject.toml without `[tool.overlapscope]`.

    Raises:
        ConfigError: The file cannot be read.
    """
    return _section(_toml(path), path) if path.name == PROJECT else _toml(path)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(disk.read(path).decode().replace("\r\n", "\n").replace("\r", "\n"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not TOML, because it is not UTF-8 text.") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply.") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}.") from None


def _section(content: Mapping[str, Any], path: Path) -> Mapping[str, Any] | None:
    tool = content.get("tool")
    section = tool.get("overlapscope") if isinstance(tool, dict) else None
    if section is not None and not isinstance(section, dict):
        raise ConfigError(f"{path}: tool.overlapscope must be a table; write [tool.overlapscope].")
    return section
