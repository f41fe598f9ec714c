"""Configuration files (`overlapscope.toml`, or `[tool.overlapscope]` of a pyproject.toml), and where contracts lie."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from overlapscope.base import disk
from overlapscope.errors import ConfigError

FILE, PROJECT, CONTRACT = "overlapscope.toml", "pyproject.toml", "overlap.contract.toml"


def find(start: Path) -> Path | None:
    """Return the nearest configuration file for a directory.

    This is an `overlapscope.toml`, or a pyproject.toml that has `[tool.overlapscope]`.

    Raises:
        ConfigError: A file on the way cannot be read or trusted.
    """
    for directory in _directories(start):
        dedicated, project = directory / FILE, directory / PROJECT
        if _usable(dedicated, "--config"):
            return dedicated
        # A pyproject.toml is there for other tools, too, so whose it is matters only if it has a section.
        if os.path.lexists(project) and (not project.is_file() or content(project) is not None):
            return project if _usable(project, "--config") else None
    return None


def find_contract(start: Path) -> Path | None:
    """Return the nearest contract for a directory. Raises ConfigError if it cannot be trusted."""
    nearby = (directory / CONTRACT for directory in _directories(start))
    return next((path for path in nearby if _usable(path, "--contract")), None)


def _directories(start: Path) -> Iterator[Path]:
    """Yield a directory and its parents up to the root of the repository; without a repository, only the directory."""
    above = (start, *start.parents)
    root = next((number for number, directory in enumerate(above) if os.path.lexists(directory / ".git")), 0)
    yield from above[: root + 1]


def _usable(path: Path, option: str) -> bool:
    """Return whether a file is there. Files that the user names by `option` are not checked.

    Raises:
        ConfigError: The path is not a file, or another user may have written it.
    """
    if not os.path.lexists(path):
        return False
    if not path.is_file():
        raise ConfigError(f"{path}: is not a file, or a link to nothing; repair it, or name a file by {option}.")
    if hasattr(os, "geteuid"):
        file = path.stat()
        if not {path.lstat().st_uid, file.st_uid} <= {0, os.geteuid()}:
            raise ConfigError(f"{path}: belongs to another user; name it by {option} if you trust it.")
        if file.st_mode & stat.S_IWOTH:
            raise ConfigError(f"{path}: can be written by every user; remove that right, or name it by {option}.")
    return True


class _Tool(Struct, frozen=True):
    overlapscope: dict[str, Any] | None = None


class _Project(Struct, frozen=True):
    tool: _Tool = _Tool()


def content(path: Path) -> dict[str, Any] | None:
    """Return the content of a configuration file; None for a pyproject.toml without `[tool.overlapscope]`.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        data = disk.read(path)
        if path.name == PROJECT:
            # Most have no section of ours, and decoding takes longer than reading a small trace.
            if b"overlapscope" not in data:
                return None
            return msgspec.toml.decode(data, type=_Project).tool.overlapscope
        return msgspec.toml.decode(data, type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not TOML, because it is not UTF-8 text.") from None
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply.") from None
    except msgspec.ValidationError:
        raise ConfigError(f"{path}: tool.overlapscope must be a table; write [tool.overlapscope].") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}.") from None
