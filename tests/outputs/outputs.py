"""Outputs of all lines, normalized, and their digests."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import lzma
import os
import re
import shlex
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import quote

from flask import Flask
from flask.testing import FlaskClient

from overlapscope.commands import main
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.pages import PAGES
from overlapscope.dashboard.shell import create
from overlapscope.dashboard.upload import DroppedFiles
from overlapscope.errors import OverlapscopeError
from overlapscope.plugins.history.stored import Stored
from overlapscope.ranks import engine
from tests.outputs.lines import PAGE, TOOL, groups
from tests.support.scheduler import cores
from tests.support.session import session

ROOT = Path(__file__).parents[2]
DIGESTS = Path(__file__).with_name("digests.txt")
TEXTS = Path(".cache") / "outputs"
"""Folder of the texts in a checkout."""
_TOKEN = "known"
_ADMITTED = {"Authorization": f"token {_TOKEN}"}
_SETTINGS = {"COLUMNS": "120", "LINES": "50", "NO_COLOR": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
_LARGE = re.compile(r"<script[^>]*>.*?</script>", re.DOTALL)
"""Plotly in HTML."""
_CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?( ?UTC|Z|\+00:00)?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"\b\d{19}:\d+\b"), "STATE"),
)
"""Texts that differ from run to run."""


def outputs() -> dict[str, str]:
    """Return the output of every line, with its messages, its exit code and the files that it writes."""
    with tempfile.TemporaryDirectory() as folder:
        lay_out(Path(folder))
        todo = list(groups(Path(folder)))
        with ProcessPoolExecutor(cores(), get_context("fork"), _begin, (Path(folder),)) as pool:
            return {line: text for texts in pool.map(_of_group, todo) for line, text in texts}


def digest(text: str) -> str:
    """Return a short digest of an output."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def changed(texts: Mapping[str, str]) -> list[str]:
    """Return the lines whose outputs are not those of the committed digests, and those that exist on one side only."""
    rows = DIGESTS.read_text().splitlines() if DIGESTS.exists() else []
    committed = {row[17:]: row[:16] for row in rows}
    now = {line: digest(text) for line, text in texts.items()}
    return sorted(line for line in now.keys() | committed.keys() if now.get(line) != committed.get(line))


def file_of(line: str) -> str:
    """Return the name of the file with a line's text."""
    return f"{re.sub('[^a-z0-9.]+', '-', line.lower())[:80]}-{digest(line)[:8]}.txt"


def lay_out(folder: Path) -> None:
    """Put all recordings into a folder."""
    (folder / "traces").symlink_to(ROOT / "traces")
    for packed in sorted((ROOT / "tests").glob("*.tar.xz")):
        target = folder / "jobs" / packed.name.partition(".")[0]
        with tarfile.open(packed) as archive:
            archive.extractall(target, filter="data")
    (folder / "nsys").mkdir()
    for packed in sorted((ROOT / "traces" / "nsys").glob("*.sqlite.xz")):
        (folder / "nsys" / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))


def _begin(folder: Path) -> None:
    """Prepare a process: a folder of its own with the same recordings, in a session that reads each once."""
    own = Path(tempfile.mkdtemp(dir=folder))
    for part in ("traces", "nsys", "jobs"):
        (own / part).symlink_to(folder / part)
    os.chdir(own)
    os.environ.update(_SETTINGS, OVERLAPSCOPE_CACHE_DIR=str(own / "cache"), OVERLAPSCOPE_HISTORY=str(own / "history"))
    # Other processes would read the traces of a large job.
    vars(engine)["_FEW_BYTES"] = 1 << 40
    from overlapscope.plugins.assistant import answers

    # What fits into an answer depends on the length of the checkout's path.
    vars(answers).update(MAX_BYTES=1 << 20, _HEAD_BYTES=1 << 20)
    contextlib.ExitStack().enter_context(session(own / "traces", own / "nsys", own / "jobs"))


def _of_group(lines: list[str]) -> list[tuple[str, str]]:
    return [(line, _normal(_of_line(line))) for line in lines]


def _of_line(line: str) -> str:
    kind, *rest = shlex.split(line) or [""]
    if kind == PAGE:
        return _page(*rest)
    if kind == TOOL:
        return _tool(*rest)
    before = {*_files()}
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape", newline="") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(line))
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8", "surrogateescape"))
    written = sorted(path for path, _ in {*_files()} - before)
    files = "".join(f"\n== {path}\n{path.read_text(errors='surrogateescape')}" for path in written)
    return f"exit code {code}\n{''.join(texts)}{files}"


def _files() -> Iterator[tuple[Path, int]]:
    """Yield the texts that lines have written, with their times."""
    for path in Path().rglob("*"):
        if path.is_file() and path.suffix in {".csv", ".html", ".json", ".md", ".toml"}:
            yield path, path.stat().st_mtime_ns


def _tool(name: str, arguments: str) -> str:
    from overlapscope.plugins.assistant.folders import Folders
    from overlapscope.plugins.assistant.tools import Tools

    tools = {tool.__name__: tool for tool in Tools(Folders.of(["traces"])).all()}
    try:
        return tools[name](**json.loads(arguments))
    except OverlapscopeError as error:
        return f"{error.for_assistants}"


def _page(name: str, traces: str, history: str = "none") -> str:
    """Return a page of the dashboard, as the browser gets it once all that it waits for is read."""
    library, client = _dashboard(traces, history)
    search = "" if PAGES[name].needs == "nothing" else f"?trace={quote(library.entries()[0].id)}"
    shown = {"url.pathname": f"/{name}", "url.search": search, "scheme-shown.data": "light", "loaded.data": 0}
    parts = [{"id": key.partition(".")[0], "property": key.partition(".")[2], "value": shown[key]} for key in shown]
    outputs = [
        dict(zip(("id", "property"), part.split("."), strict=True)) for part in _content(client)[2:-2].split("...")
    ]
    post = {"output": _content(client), "outputs": outputs, "inputs": parts, "state": [], "changedPropIds": []}
    while True:
        answer = client.post("/_dash-update-component", json=post, headers=_ADMITTED)
        if answer.json is None or answer.json["response"]["loading-clock"]["disabled"]:
            break
        time.sleep(0.05)
    return f"{answer.status_code}\n{json.dumps(answer.json, indent=1)}"


@cache
def _dashboard(traces: str, history: str) -> tuple[Library, FlaskClient]:
    library = Library([Path(traces)], cache=False, data={"history": Stored(Path(history).absolute())})
    for entry in library.entries()[:1]:
        library.wait(entry.id)
    server: Flask = create(library, DroppedFiles(library, 10_000), base="/", token=_TOKEN).server
    return library, server.test_client()


def _content(client: FlaskClient) -> str:
    """Return the outputs of the callback that answers with a page."""
    callbacks = json.loads(client.get("/_dash-dependencies", headers=_ADMITTED).data)
    return next(str(each["output"]) for each in callbacks if each["output"].startswith("..content.children."))


def _normal(text: str) -> str:
    """Return an output without what differs from run to run, or from machine to machine."""
    text = _LARGE.sub("SCRIPT", text).replace(os.getcwd(), "HERE").replace(str(ROOT), "ROOT")
    for pattern, name in _CHANGING:
        text = pattern.sub(name, text)
    return text
