"""Sources: a file is known by its content, and other packages can add kinds of files."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

import overlapscope as ov
from overlapscope.commands import main
from overlapscope.errors import UnreadableTrace, UsageError
from overlapscope.plugin import Plugin, Recorder, TraceSource
from overlapscope.reading import load_all, source
from overlapscope.reading.source import ReadRequest
from overlapscope.trace.model import Kind, Trace
from tests.support.helpers import MS, TRACES, Op, make_trace
from tests.support.toy_plugin import Registered, registering

KINETO = TRACES / "streamed0_pinned0.json.gz"


def read(path: Path, request: ReadRequest) -> Trace:
    if not path.read_bytes().endswith(b"end\n"):
        raise UnreadableTrace(f"{path}: the file is cut off; record it again.")
    trace = make_trace([Op(Kind.COMPUTE, 0, MS), Op(Kind.H2D, 2 * MS, 3 * MS)])
    return replace(trace, source=str(path), recorder="ticks", framework="cuda")


TICKS = Plugin(
    "ticks",
    sources=(
        TraceSource(
            Recorder("ticks", "Ticks", gpu_activity="GPU", launches="It can't.", sync_events="It can't."),
            (".ticks",),
            rb"ticks 1\n",
            f"{__name__}:read",
        ),
    ),
)


@pytest.fixture
def registered(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registered]:
    """Yield a function that registers plugins of other packages: names, and where they are."""
    with registering(tmp_path_factory.mktemp("site"), monkeypatch) as register:
        register(ticks=f"{__name__}:TICKS")
        source._others.cache_clear()
        yield register
    source._others.cache_clear()


def test_another_packages_source_reads_its_files_by_their_content(
    tmp_path: Path, registered: Registered, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "any.name"
    path.write_bytes(b"ticks 1\nend\n")
    trace = ov.load(path)
    assert (trace.recorder, len(trace.gpu_ops)) == ("ticks", 2)
    assert main(["analyze", str(path)]) == 0
    assert "any.name" in capsys.readouterr().out


def test_a_directory_stands_for_files_of_other_packages_sources_too(tmp_path: Path, registered: Registered) -> None:
    for name in ("b.ticks", "a.TICKS", ".hidden.ticks", "other"):
        (tmp_path / name).write_bytes(b"ticks 1\nend\n")
    assert [Path(trace.source).name for trace in load_all(tmp_path)] == ["a.TICKS", "b.ticks"]


def test_what_another_packages_source_says_is_shown(
    tmp_path: Path, registered: Registered, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "any.name"
    path.write_bytes(b"ticks 1\n")
    assert main(["analyze", str(path)]) == 2
    assert "any.name: the file is cut off; record it again." in capsys.readouterr().err.replace("\n", " ")


def test_a_plugin_that_cannot_be_used_is_named(tmp_path: Path, registered: Registered) -> None:
    registered(ticks=f"{__name__}:TICKS", broken="no.such:module")
    path = tmp_path / "any.name"
    path.write_bytes(b"ticks 1\nend\n")
    with pytest.raises(UsageError, match="the plugin broken"):
        ov.load(path)


def test_a_trace_of_torch_profiler_needs_no_other_package(tmp_path: Path, registered: Registered) -> None:
    registered(ticks=f"{__name__}:TICKS", broken="no.such:module")
    path = tmp_path / "trace"
    path.write_bytes(gzip.decompress(KINETO.read_bytes()))
    assert ov.load(path).recorder == ov.load(KINETO).recorder == "kineto"


def test_the_example_of_the_documentation_reads_its_files(
    tmp_path: Path, registered: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "sources.md").read_text()
    example: Any = ModuleType("example")
    exec(page.partition("```python\n")[2].partition("```")[0], example.__dict__)
    monkeypatch.setitem(sys.modules, "example", example)
    monkeypatch.setattr(f"{__name__}.TICKS", example.PLUGIN)
    path = tmp_path / "a.ticks"
    path.write_text("ticks 1\nkernel 0 7 1000 5000 gemm\ngpu_memcpy 0 13 2000 8000 Memcpy HtoD (Pinned -> Device)\n")
    (device,) = ov.analyze(ov.load(path)).devices
    assert (device.buckets.compute_ns, device.buckets.exposed_copy_ns, device.overlap.copy_ns) == (4000, 3000, 6000)
    path.write_text("ticks 1\nkernel 0 7\n")
    with pytest.raises(UnreadableTrace, match="less than six words"):
        ov.load(path)
