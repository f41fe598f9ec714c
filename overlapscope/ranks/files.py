"""Traces named by paths, patterns and URLs, and their download where they are read.

fsspec and its plugins handle URLs. This module knows no protocol, except for what fsspec leaves to its callers about
HTTP.
"""

from __future__ import annotations

import glob
import pickle
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from overlapscope.base.extras import how_to_install
from overlapscope.base.words import shorten, size
from overlapscope.errors import MissingPackage, UnreadableTrace, UsageError
from overlapscope.reading import LIMIT_BYTES, SUFFIXES, expand, is_trace_name, natural
from overlapscope.reading.files import kind_of, place

_WEB = ("http", "https")
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
"""Protocols of Azure, which have a container where other URLs have a user."""
_LONGEST_NAME = 200
_LONGEST_WORDS = 300
_SILENCE_S = 60.0
"""Maximum silence of a web server, in seconds. The time for a whole file is not limited."""


class Location(Struct, frozen=True):
    """Location of one trace, sent to the process that reads it."""

    source: str
    """Name for messages and reports: the path as given, or the URL without secrets."""
    path: str
    """Path in `filesystem`, or an absolute local path without one."""
    filesystem: bytes | None = None
    """Pickled filesystem of fsspec. It stays bytes so that a machine without its plugin can report that."""


def expand_urls(sources: str | Path | Iterable[str | Path]) -> tuple[Location, ...]:
    """Return the traces that files, directories, patterns and URLs stand for, each once, in the given order.

    Anything with `://` in it is a URL. A directory stands for the traces directly in it; the traces of directories and
    patterns are in natural order. A single URL is checked when it is read.

    Raises:
        UnreadableTrace: If there is no trace, or a place can't be accessed.
        UsageError: If a protocol is unknown.
        MissingPackage: If fsspec or its plugin is missing.
    """
    if isinstance(sources, str | Path):
        sources = [sources]
    locations: dict[tuple[str, bytes | None], Location] = {}
    for source in sources:
        for location in _in_url(source) if isinstance(source, str) and is_url(source) else _in_path(source):
            locations.setdefault((location.path, location.filesystem), location)
    return tuple(locations.values())


def is_url(source: str) -> bool:
    """Return whether a source is a URL: anything with `://` in it."""
    return "://" in source


@contextmanager
def fetched(
    location: Location, *, limit_bytes: int = LIMIT_BYTES, directory: str | Path | None = None
) -> Iterator[Path]:
    """Provide the trace as a local file: the file itself, or a temporary copy under the same name.

    Args:
        location: The trace.
        limit_bytes: Size at which a download is aborted.
        directory: Place for the copy; by default that of temporary files.

    Yields:
        The local path, which is valid until the block ends.

    Raises:
        UnreadableTrace: If a retry would not help. Anything else that a plugin raises may be temporary.
        MissingPackage: If the plugin is missing here.
    """
    if location.filesystem is None:
        yield Path(location.path)
        return
    with tempfile.TemporaryDirectory(prefix="overlapscope-", dir=directory) as folder:
        # The name may contain the rank.
        name = re.sub(r"[/\0]", "_", unquote(PurePosixPath(location.source).name))
        target = Path(folder) / (name[-_LONGEST_NAME:] or "trace")
        try:
            _download(location, target, limit_bytes)
        except FileNotFoundError:
            raise UnreadableTrace(location.source, "the file does not exist; check the URL.") from None
        except PermissionError as error:
            raise UnreadableTrace(
                location.source,
                f"access is denied ({error_text(error)}); check the credentials on the machine that reads it.",
            ) from None
        yield target


def shown_url(url: str) -> str:
    """Return the URL without user, password, query and fragment, each of which may be a secret."""
    protocol, separator, rest = url.rpartition("://")
    last_protocol = protocol.rpartition(":")[2]
    rest = re.split(r"[?#]" if last_protocol in _WEB else r"[?&][\w.-]+=", rest, maxsplit=1)[0]
    if last_protocol not in _CONTAINERS:
        rest = re.sub(r"^[^/@]*@", "", rest)
    return f"{re.sub(r'//[^/@]*@', '//', protocol)}{separator}{rest}"


def error_text(error: BaseException) -> str:
    """Return a library's error as a short line without the secrets of URLs."""
    text = re.sub(r"[\w.+-]+://[^\s'\"<>]+", lambda url: shown_url(url[0]), " ".join(str(error).split()))
    return f"{type(error).__name__}: {shorten(text, _LONGEST_WORDS)}" if text else type(error).__name__


def _in_path(source: str | Path) -> list[Location]:
    paths = expand([source])
    if Path(source).is_dir():
        # A report of ranks may lie beside its traces.
        paths = [path for path in paths if kind_of(path) != "ranks"]
        if not paths:
            raise UnreadableTrace(source, "this directory has a report of ranks, but no trace; name another.")
    return [Location(str(path), str(place(path, LIMIT_BYTES).absolute())) for path in paths]


def _in_url(url: str) -> list[Location]:
    shown = shown_url(url)
    filesystem, path = filesystem_of(url)
    if "file" in _protocols(filesystem):
        return _in_path(path)
    web = not _protocols(filesystem).isdisjoint(_WEB)
    # On the web, a `?` begins the query instead of being part of a pattern.
    name = re.split(r"[?#]", path)[0] if web else path
    has_magic = glob.has_magic(name)
    try:
        if not has_magic and (name.lower().endswith(SUFFIXES) or not _is_directory(filesystem, path, web=web)):
            return [_location(filesystem, path, url, path)]
        found = filesystem.glob(path, detail=True).values() if has_magic else filesystem.ls(path, detail=True)
    except Exception as error:
        # Plugins raise errors of their own. On the web, "not found" may also mean that no server answered.
        if isinstance(error, FileNotFoundError) and error.__cause__ is None:
            raise UnreadableTrace(shown, "the file or directory does not exist; check the URL.") from None
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise UnreadableTrace(
            shown, f"cannot be accessed ({error_text(error)}); check the URL and the credentials."
        ) from None
    files = [entry["name"] for entry in found if entry["type"] == "file"]
    paths = [file for file in files if has_magic or is_trace_name(PurePosixPath(file).name)]
    if not paths:
        no_trace = f"no trace in this directory; traces end in {', '.join(SUFFIXES)}, or name the file."
        raise UnreadableTrace(shown, "the pattern matches no file; check it." if has_magic else no_trace)
    return [_location(filesystem, entry, url, path) for entry in sorted(paths, key=lambda entry: natural(Path(entry)))]


def filesystem_of(url: str) -> tuple[Any, str]:
    """Return the filesystem of fsspec for a URL, and the path in it.

    Raises:
        UsageError: If the protocol is unknown.
        MissingPackage: If fsspec or its plugin is missing.
        UnreadableTrace: If the filesystem can't be reached.
    """  # noqa: DOC501
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingPackage(shown_url(url), f"URLs need fsspec. {how_to_install('cluster')}") from None
    protocol = url.partition("://")[0].rpartition("::")[2]
    try:
        filesystem, path = url_to_fs(url, **_options(protocol))
    except ImportError as error:
        raise _no_plugin(shown_url(url), error) from None
    except ValueError as error:
        raise UsageError(
            f"{shown_url(url)}: fsspec does not understand this URL ({error_text(error)}); name a file, or a URL of a "
            "protocol that it or one of its plugins knows."
        ) from None
    except Exception as error:
        raise UnreadableTrace(
            shown_url(url), f"cannot be reached ({error_text(error)}); check the URL and the credentials."
        ) from None
    return filesystem, path


def _options(protocol: str) -> dict[str, Any]:
    """Return options for fsspec, which aborts any web download after five minutes by default."""
    if protocol not in _WEB:
        return {}
    try:
        from aiohttp import ClientTimeout
    except ImportError:
        # fsspec reports the missing package.
        return {}
    return {"client_kwargs": {"timeout": ClientTimeout(total=None, sock_connect=_SILENCE_S, sock_read=_SILENCE_S)}}


def _no_plugin(shown: str, error: ImportError) -> MissingPackage:
    return MissingPackage(shown, f"fsspec lacks a plugin here ({error_text(error)}); install it.")


def _protocols(filesystem: Any) -> set[str]:
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)


def _is_directory(filesystem: Any, path: str, *, web: bool) -> bool:
    """Return whether a path is a directory.

    On the web, a directory is a page with links, and fsspec would download any file to look for links in it.

    Raises:
        FileNotFoundError: If there is nothing at the path.
    """
    if web and path.endswith("/"):
        return True
    info = filesystem.info(path)
    return bool(info["type"] == "directory" or (web and info.get("mimetype") == "text/html"))


def _location(filesystem: Any, path: str, url: str, url_path: str) -> Location:
    """Return the location of a file at `path`, which was found by the URL whose path is `url_path`."""
    base = url.removesuffix(url_path) if url.endswith(url_path) else None
    full = path if "://" in path else f"{base}{path}" if base is not None else filesystem.unstrip_protocol(path)
    return Location(shown_url(full), path, pickle.dumps(filesystem))


def _download(location: Location, target: Path, limit_bytes: int) -> None:
    assert location.filesystem is not None
    try:
        filesystem = pickle.loads(location.filesystem)
    except ImportError as error:
        raise _no_plugin(location.source, error) from None
    from fsspec.callbacks import Callback

    def check(total: int | None, done: int, **_: Any) -> None:
        if max(total or 0, done) > limit_bytes:
            large = f"holds more than {size(limit_bytes)}; raise --max-size if the trace really is that large."
            raise UnreadableTrace(location.source, large)

    filesystem.get_file(location.path, str(target), callback=Callback(hooks={"limit": check}))
