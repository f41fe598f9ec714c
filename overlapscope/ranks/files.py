"""The traces that paths, patterns and URLs stand for, and each of them as a local file where it is to be read.

URLs are the business of fsspec and its plugins; nothing here knows one protocol from another, but for what fsspec
leaves to its callers about HTTP.
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
_PLUGINS = {
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "gcs": "gcsfs",
    "gs": "gcsfs",
    "hdfs": "pyarrow",
    "http": "aiohttp",
    "https": "aiohttp",
    "s3": "s3fs",
    "s3a": "s3fs",
    "sftp": "paramiko",
    "smb": "smbprotocol",
    "ssh": "paramiko",
}
"""What to install for the protocols of fsspec that most data lies behind."""
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
"""Azure names a container where other URLs name a user."""
_LONGEST_NAME = 200
_LONGEST_WORDS = 300
_SILENCE_S = 60.0
"""A web server that sends nothing for so long is given up; how long a whole file takes is its own affair."""


class Location(Struct, frozen=True):
    """Where one trace is. It travels to whoever reads it."""

    source: str
    """As it is shown and reported: the path as given, or the URL without what may be secret in it."""
    path: str
    """For `filesystem`; an absolute path where there is none."""
    filesystem: bytes | None = None
    """The pickled filesystem of fsspec. As bytes, so that a machine that lacks its plugin can say so."""


def expand_urls(sources: str | Path | Iterable[str | Path]) -> tuple[Location, ...]:
    """The traces that files, directories, glob patterns and URLs of all these stand for, each once, in the order given.

    What has `://` in it is a URL. A directory stands for the traces right inside it; it and a pattern yield theirs in
    natural order. Whether a single trace behind a URL exists is left to whoever reads it.

    Raises UnreadableTrace where there is no trace or a place cannot be looked at, UsageError for a protocol that
    nothing knows, MissingPackage where fsspec or its plugin is missing.
    """
    if isinstance(sources, str | Path):
        sources = [sources]
    locations: dict[tuple[str, bytes | None], Location] = {}
    for source in sources:
        for location in _of_url(source) if isinstance(source, str) and is_url(source) else _of_path(source):
            locations.setdefault((location.path, location.filesystem), location)
    return tuple(locations.values())


def is_url(source: str) -> bool:
    """What has `://` in it is one."""
    return "://" in source


@contextmanager
def fetched(
    location: Location, *, limit_bytes: int = LIMIT_BYTES, directory: str | Path | None = None
) -> Iterator[Path]:
    """The trace as a local file: the file itself, or a copy that is gone afterwards, under its own name.

    A copy lies in `directory`, or where temporary files do, and is given up at `limit_bytes`.

    Raises UnreadableTrace where trying again would not help, MissingPackage where the plugin is missing here;
    whatever else the plugin raises may be passing.
    """
    if location.filesystem is None:
        yield Path(location.path)
        return
    with tempfile.TemporaryDirectory(prefix="overlapscope-", dir=directory) as folder:
        target = Path(folder) / _file_name(location)
        try:
            _download(location, target, limit_bytes)
        except FileNotFoundError:
            raise UnreadableTrace(location.source, "the file does not exist; check the URL.") from None
        except PermissionError as error:
            raise UnreadableTrace(
                location.source,
                f"access is denied ({said(error)}); check the credentials on the machine that reads it.",
            ) from None
        yield target


def shown_url(url: str) -> str:
    """The URL without user, password, query and fragment: each may be a secret."""
    protocol, separator, rest = url.rpartition("://")
    own = protocol.rpartition(":")[2]
    rest = re.split(r"[?#]" if own in _WEB else r"[?&][\w.-]+=", rest, maxsplit=1)[0]
    if own not in _CONTAINERS:
        rest = re.sub(r"^[^/@]*@", "", rest)
    return f"{re.sub(r'//[^/@]*@', '//', protocol)}{separator}{rest}"


def said(error: BaseException) -> str:
    """What an error of a library says, in one line, not too long, and without the secrets of URLs in it."""
    text = re.sub(r"[\w.+-]+://[^\s'\"<>]+", lambda url: shown_url(url[0]), " ".join(str(error).split()))
    return f"{type(error).__name__}: {shorten(text, _LONGEST_WORDS)}" if text else type(error).__name__


def _of_path(source: str | Path) -> list[Location]:
    paths = expand([source])
    if Path(source).is_dir():
        # A report that was written beside its traces is none of them.
        paths = [path for path in paths if kind_of(path) != "ranks"]
        if not paths:
            raise UnreadableTrace(source, "this directory has a report of ranks, but no trace; name another.")
    return [Location(str(path), str(place(path, LIMIT_BYTES).absolute())) for path in paths]


def _of_url(url: str) -> list[Location]:
    shown = shown_url(url)
    filesystem, path = filesystem_of(url)
    if "file" in _protocols(filesystem):
        return _of_path(path)
    web = not _protocols(filesystem).isdisjoint(_WEB)
    # On the web a `?` begins the query, and is no pattern.
    name = re.split(r"[?#]", path)[0] if web else path
    try:
        if glob.has_magic(name):
            paths = [entry["name"] for entry in filesystem.glob(path, detail=True).values() if entry["type"] == "file"]
            wrong = "the pattern matches no file; check it"
        elif name.lower().endswith(SUFFIXES) or not _is_directory(filesystem, path, web=web):
            return [_location(filesystem, path, url, path)]
        else:
            inside = filesystem.ls(path, detail=True)
            paths = [
                entry["name"]
                for entry in inside
                if entry["type"] == "file" and is_trace_name(PurePosixPath(entry["name"]).name)
            ]
            wrong = f"no trace in this directory; traces end in {', '.join(SUFFIXES)}, or name the file"
    except Exception as error:
        # Each plugin has errors of its own. For the web, "not found" may as well mean that no server answered.
        if isinstance(error, FileNotFoundError) and error.__cause__ is None:
            raise UnreadableTrace(shown, "the file or directory does not exist; check the URL.") from None
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise UnreadableTrace(
            shown, f"cannot be accessed ({said(error)}); check the URL and the credentials."
        ) from None
    if not paths:
        raise UnreadableTrace(shown, f"{wrong}.")
    return [_location(filesystem, entry, url, path) for entry in sorted(paths, key=lambda entry: natural(Path(entry)))]


def filesystem_of(url: str) -> tuple[Any, str]:
    """The filesystem of fsspec behind a URL, and the path in it.

    Raises UsageError for a protocol that nothing knows, MissingPackage where fsspec or its plugin is missing,
    UnreadableTrace where it cannot be reached.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingPackage(shown_url(url), f"URLs need fsspec. {how_to_install('cluster')}") from None
    protocol = url.partition("://")[0].rpartition("::")[2]
    try:
        filesystem, path = url_to_fs(url, **_options(protocol))
    except ImportError as error:
        raise _no_plugin(shown_url(url), protocol, error) from None
    except ValueError as error:
        raise UsageError(
            f"{shown_url(url)}: fsspec does not understand this URL ({said(error)}); name a file, or a URL of a "
            "protocol that it or one of its plugins knows."
        ) from None
    except Exception as error:
        raise UnreadableTrace(
            shown_url(url), f"cannot be reached ({said(error)}); check the URL and the credentials."
        ) from None
    return filesystem, path


def _options(protocol: str) -> dict[str, Any]:
    """What has to be said to fsspec: it gives up any web download after five minutes, however well it goes."""
    if protocol not in _WEB:
        return {}
    try:
        from aiohttp import ClientTimeout
    except ImportError:
        # Said by fsspec, and passed on.
        return {}
    return {"client_kwargs": {"timeout": ClientTimeout(total=None, sock_connect=_SILENCE_S, sock_read=_SILENCE_S)}}


def _no_plugin(shown: str, protocol: str, error: ImportError) -> MissingPackage:
    plugin = _PLUGINS.get(protocol)
    remedy = f"pip install {plugin}" if plugin else "install the missing package"
    return MissingPackage(shown, f"fsspec lacks its plugin for {protocol}:// here ({said(error)}); {remedy}.")


def _protocols(filesystem: Any) -> set[str]:
    protocol = filesystem.protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)


def _is_directory(filesystem: Any, path: str, *, web: bool) -> bool:
    """On the web a directory is a page with links. fsspec would download whatever is there to look for some.

    Raises FileNotFoundError where nothing is.
    """
    if web and path.endswith("/"):
        return True
    info = filesystem.info(path)
    return bool(info["type"] == "directory" or (web and info.get("mimetype") == "text/html"))


def _location(filesystem: Any, path: str, url: str, asked: str) -> Location:
    """Of one file at `path`; `asked` is the path of the URL that it was found by."""
    base = url.removesuffix(asked) if url.endswith(asked) else None
    full = path if "://" in path else f"{base}{path}" if base is not None else filesystem.unstrip_protocol(path)
    return Location(shown_url(full), path, pickle.dumps(filesystem))


def _file_name(location: Location) -> str:
    """The name of the copy: the rank may stand in it."""
    name = unquote(PurePosixPath(location.source).name)
    return re.sub(r"[/\0]", "_", name)[-_LONGEST_NAME:] or "trace"


def _download(location: Location, target: Path, limit_bytes: int) -> None:
    assert location.filesystem is not None
    try:
        filesystem = pickle.loads(location.filesystem)
    except ImportError as error:
        raise _no_plugin(location.source, location.source.partition("://")[0], error) from None
    filesystem.get_file(location.path, str(target), callback=_limit(location.source, limit_bytes))


def _limit(source: str, limit_bytes: int) -> Any:
    """A callback of fsspec that ends a download which is too large to be read."""
    from fsspec.callbacks import Callback

    def check(total: int | None, done: int, **_: Any) -> None:
        if max(total or 0, done) > limit_bytes:
            raise UnreadableTrace(
                source, f"holds more than {size(limit_bytes)}; raise --max-size if the trace really is that large."
            )

    return Callback(hooks={"limit": check})
