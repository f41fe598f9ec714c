"""Tests of the fuzzer: a seed gives a file, defects are detected, and nothing stops the campaign."""

from __future__ import annotations

import lzma
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.budgets import config
from overlapscope.budgets.settings import Budget
from overlapscope.errors import OverlapscopeError
from overlapscope.plugins.history.store import HistoryRow, Store
from overlapscope.reading import _scan, load
from overlapscope.reading._events import Batch
from overlapscope.trace.model import Trace
from tests.fuzz import campaign, once, oracle, other_files
from tests.fuzz.corpus import few, origins
from tests.fuzz.mutators import OTHER, OTHERS, SETTINGS, FuzzCase, make, swallowing_lead_in, text, unknown_copies
from tests.fuzz.oracle import Defect
from tests.support.endless_tables import make_endless
from tests.support.helpers import TRACES


def test_a_seed_makes_the_same_file_in_every_process() -> None:
    script = "from tests.fuzz.mutators import make; import zlib; print(*(zlib.crc32(make(n).data) for n in range(60)))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_nothing_is_found_in_the_first_files(tmp_path: Path) -> None:
    tally = campaign.run(0, 300, jobs=2, seconds=None, out=tmp_path)
    assert tally.files == tally.files_by_kind.total() == 300
    assert tally.files_by_kind["trace"] > 150 and tally.files_by_kind["packed trace"] > 20
    assert not tally.findings_by_kind
    assert msgspec.json.decode((tmp_path / campaign.TALLY).read_bytes()) == msgspec.to_builtins(tally)


def test_what_hangs_and_what_dies_is_found_and_the_others_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(case: FuzzCase, folder: Path) -> list[Defect]:
        if case.seed == 3:
            time.sleep(600)
        if case.seed == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return [Defect("seven", "is not liked")] if case.seed == 7 else []

    monkeypatch.setattr(campaign, "judge", judge)
    monkeypatch.setattr(campaign, "HANG_S", 2.0)
    tally = campaign.run(0, 10, jobs=1, seconds=None, out=tmp_path)
    assert tally.files == 10
    assert dict(tally.findings_by_kind) == {
        "hangs: outside the package": 1,
        "process died (-9): outside the package": 1,
        "seven": 1,
    }
    assert (tmp_path / f"seven-{make(7).name}").read_bytes() == make(7).data
    assert "seed 7: seven" in (tmp_path / "found.txt").read_text()


def test_a_sum_that_is_off_by_one_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def analyze(trace: Trace) -> TraceAnalysis:
        analysis = analyze_trace(trace)
        for device in analysis.result.devices:
            buckets = msgspec.structs.replace(device.buckets, idle_ns=device.buckets.idle_ns + 1)
            msgspec.structs.force_setattr(device, "buckets", buckets)
        return analysis

    monkeypatch.setattr(oracle, "analyze_trace", analyze)
    seed = next(seed for seed in range(100) if not make(seed).how)
    kinds = [finding.kind for finding in once.judged(make(seed))]
    assert "figures: idle_ns is not what a sweep says" in kinds


@pytest.mark.skipif(not _scan.is_compiled(), reason="needs a C compiler when the package is installed")
def test_a_scanner_that_reads_one_duration_differently_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scanner = _scan.scanner

    def changed() -> Callable[[memoryview], Batch | None]:
        scan = scanner()

        def scan_wrongly(array: memoryview) -> Batch | None:
            batch = scan(array)
            if batch is not None and len(batch.dur_ns):
                batch.dur_ns[-1] += 1
            return batch

        return scan_wrongly

    monkeypatch.setattr(_scan, "scanner", changed)
    kinds = {defect.kind for seed in range(20) for defect in once.judged(make(seed))}
    assert any(kind.endswith("is not what Python reads") for kind in kinds), kinds


def test_a_status_that_contradicts_the_value_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "excess", lambda *_: 0.0)
    monkeypatch.setattr(oracle, "REPORTED", 1.0)
    kinds = {defect.kind for origin in few()[:30] for defect in once.judged(FuzzCase(1, origin, origin.text))}
    assert "check: a verdict contradicts its value" in kinds


def test_files_of_other_sources_are_made_of_every_kind_and_some_can_be_read(tmp_path: Path) -> None:
    mutations, readable = set[str](), Counter[str]()
    read: dict[str, Callable[[Path], object]] = {
        ".sqlite": lambda path: len(load(path, cache=False).gpu_ops),
        ".xplane.pb": lambda path: len(load(path, cache=False).gpu_ops),
        ".cached": lambda path: len(load(path, cache=False).gpu_ops),
        ".ascend.json": lambda path: len(load(path, cache=False).gpu_ops),
        ".history": history_of,
        ".toml": config.read,
    }
    for seed in range(30):
        rng = random.Random(seed)
        for suffix, new in OTHERS:
            origin, data, how = new(rng)
            mutations.update(how)
            case = FuzzCase(seed, origin, data, suffix, how, {OTHER})
            assert campaign.judge(case, tmp_path) == []
            path = tmp_path / case.name
            path.write_bytes(data)
            with suppress(OverlapscopeError):
                readable[suffix] += bool(read[suffix](path))
    expected = {"endless", "other_pages", "other_values", "without_table", "other_bytes", "many_planes", "planes"}
    assert mutations >= expected | {"other_settings", "other_numbers", "other_keys", "cached", "other_events"}
    assert readable[".sqlite"] > 3 and readable[".xplane.pb"] and readable[".history"] > 3 and readable[".toml"] > 3
    assert readable[".ascend.json"] > 20


def test_mutations_of_an_endless_table_end(tmp_path: Path) -> None:
    path = tmp_path / "endless.sqlite"
    for seed in range(20):
        path.write_bytes(lzma.decompress((TRACES / "nsys" / "one_copy.sqlite.xz").read_bytes()))
        make_endless(path, "CUPTI_ACTIVITY_KIND_RUNTIME", levels=6)
        with suppress(sqlite3.Error):
            other_files.other_values(random.Random(seed), path)


def history_of(path: Path) -> list[HistoryRow]:
    with Store.open(path, read_only=True) as store:
        return store.rows()


@pytest.mark.parametrize("kind", other_files.SETTINGS_KINDS)
def test_settings_that_are_passed_over_are_found(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = origins()[0]
    case = FuzzCase(1, origin, origin.text, how=[kind], tells={SETTINGS})
    assert campaign.judge(case, tmp_path) == []
    monkeypatch.setattr(oracle, "main", lambda line: 0)
    assert [finding.kind for finding in campaign.judge(case, tmp_path)] == [
        "settings: settings that are not a file are passed over"
    ]


@pytest.mark.parametrize("mutator", [unknown_copies, swallowing_lead_in])
def test_copies_without_a_direction_and_a_long_lead_in_never_pass(
    mutator: Callable[[random.Random, dict[str, Any]], None], tmp_path: Path
) -> None:
    for seed, origin in enumerate(origins()[:12]):
        document = origin.document()
        mutator(random.Random(seed), document)
        assert campaign.judge(FuzzCase(seed, origin, text(document), how=[mutator.__name__]), tmp_path) == []


def test_a_finding_is_shown_again_on_a_smaller_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def judge(case: FuzzCase, folder: Path) -> list[Defect]:
        return [Defect("a copy", "is in it")] if b"gpu_memcpy" in case.data else []

    monkeypatch.setattr(campaign, "judge", judge)
    seed = next(seed for seed in range(100) if b"gpu_memcpy" in make(seed).data and not make(seed).how)
    assert once.again(seed, tmp_path) == 1
    assert "a copy\nis in it" in capsys.readouterr().out
    assert (tmp_path / f"{seed}.small.json").read_bytes().count(b'"cat"') == 1
