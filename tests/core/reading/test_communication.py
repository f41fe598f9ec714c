"""Tests of which kernels are communication: by their launch, by their stream, and by the user's list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope.commands import main
from overlapscope.errors import ConfigError
from overlapscope.reading.communication import with_communication
from overlapscope.reading.patterns import NamePatterns, name_patterns
from overlapscope.trace.model import Kind, Trace
from tests.support.helpers import Host, Op, make_trace
from tests.support.kineto_files import call, kernel, write

COLLECTIVE = (Host("aten::mm", 0, 100), Host("c10d::allreduce_", 100, 200), Host("record_param_comms", 110, 190))


def kinds(trace: Trace, *patterns: str) -> dict[str, Kind]:
    ops = with_communication(trace, tuple(map(re.compile, patterns))).gpu_ops
    return {ops.name(row): Kind(ops.kind[row]) for row in range(len(ops))}


def launched(name: str, at: int, stream: int = 7) -> Op:
    return Op(Kind.COMPUTE, at, at + 5, stream=stream, launch=(at, at + 1), name=name)


def test_a_kernel_that_a_collective_launches_directly_communicates() -> None:
    ops = [launched("mine", 50), launched("gpuSum", 150), launched("checkForNaN", 160), launched("at::native::f", 170)]
    assert kinds(make_trace(ops, cpu_ops=COLLECTIVE)) == {
        "mine": Kind.COMPUTE,
        "gpuSum": Kind.COMM,
        "checkForNaN": Kind.COMPUTE,
        "at::native::f": Kind.COMPUTE,
    }
    assert kinds(make_trace([launched("gpuSum", 150)], annotations=[Host("nccl:all_reduce", 140, 160)]))["gpuSum"] == 1


def test_a_copy_inside_a_collective_and_a_fused_product_compute() -> None:
    inside = (*COLLECTIVE, Host("aten::copy_", 120, 140))
    assert kinds(make_trace([launched("pack", 130)], cpu_ops=inside)) == {"pack": Kind.COMPUTE}
    fused = [Host("symm_mem::fused_all_gather_matmul", 0, 100)]
    assert kinds(make_trace([launched("pack", 50)], cpu_ops=fused)) == {"pack": Kind.COMPUTE}


def test_an_unclear_name_is_decided_by_a_stream_on_which_all_else_communicates() -> None:
    nccl = Op(Kind.COMM, 0, 5, stream=20, name="ncclDevKernel_SendRecv()")
    unclear = launched("dispatchKernel", 10, stream=20)
    assert kinds(make_trace([nccl, unclear, launched("gemm", 30)]))["dispatchKernel"] == Kind.COMM
    assert kinds(make_trace([nccl, unclear, launched("gemm", 30, stream=20)]))["dispatchKernel"] == Kind.COMPUTE
    assert kinds(make_trace([unclear, launched("gemm", 30)]))["dispatchKernel"] == Kind.COMPUTE


def test_an_unclear_name_is_decided_by_an_op_that_is_named_after_a_collective() -> None:
    ops = [launched("dispatchKernel", 50), launched("quantize", 60)]
    judged = kinds(make_trace(ops, cpu_ops=[Host("pplx_kernels::all_to_all_internode_dispatch", 0, 100)]))
    assert judged == {"dispatchKernel": Kind.COMM, "quantize": Kind.COMPUTE}


def test_the_report_names_kernels_of_unclear_kind() -> None:
    trace = make_trace([launched("combineKernel", 0), launched("gemm", 30)])
    groups = ov.analyze(trace).traces[0].devices[0].kernels
    assert {group.kernel: group.unclear for group in groups} == {"combineKernel": True, "gemm": False}


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    kernels = [kernel(20, 80, name="gemm"), kernel(110, 90, name="my_a2x", correlation=2)]
    return write(tmp_path / "trace.json", [call(0, 5, 1), call(10, 5, 2), *kernels])


def test_all_commands_use_the_list_of_the_nearest_configuration(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def comm_ns() -> int:
        return ov.analyze(recording).traces[0].devices[0].engines.comm_ns

    assert comm_ns() == 0
    Path("overlapscope.toml").write_text('communication = ["^my_a2"]')
    assert comm_ns() == 90_000
    assert main(["analyze", str(recording)]) == 0 and "communication" in capsys.readouterr().out
    Path("overlapscope.toml").unlink()
    Path("other.toml").write_text(
        'communication = ["a2x"]\nbudgets.exposed_comm_time = { max = "1 us", scope = "window" }'
    )
    assert main(["check", str(recording), "--config", "other.toml"]) == 1
    settings = {"communication": ["a2x"], "budgets": {"exposed_comm_time": {"max": "1 us", "scope": "window"}}}
    assert ov.check(str(recording), settings).exit_code == 1
    assert comm_ns() == 0 and name_patterns() == NamePatterns()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["ok", "a("]', "communication[1]: 'a(' is not a regular expression (missing ), unterminated subpattern"),
        ('"a"', "communication: must be a list of regular expressions."),
        ("[1]", "communication: must be a list of regular expressions."),
    ],
)
def test_a_wrong_list_is_an_error_that_names_file_and_place(recording: Path, text: str, message: str) -> None:
    Path("overlapscope.toml").write_text(f"communication = {text}")
    with pytest.raises(ConfigError) as raised:
        ov.load(recording)
    assert str(raised.value).startswith(f"{Path.cwd() / 'overlapscope.toml'}: {message}")
