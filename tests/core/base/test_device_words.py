"""Reports on devices that are not GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import overlapscope as ov
from overlapscope.base.words import GPU, fill, noun_for
from overlapscope.catalog.causes import CAUSES
from overlapscope.commands import main
from overlapscope.rules import RULES
from overlapscope.rules.explained import advice_by_case
from tests.support.kineto_files import host, kernel, write
from tests.support.trace_views import QUEUE, TraceView

TEXT = 'GPUs: on the GPU: GPU ops, torch.cuda.synchronize(), device="cuda", PYTORCH_CUDA_ALLOC_CONF, CUDA graph.'
FIELDS = (
    '{gpu}s: on the {gpu}: {gpu} ops, torch.{cuda}.synchronize(), device="{cuda}", PYTORCH_{CUDA}_ALLOC_CONF, {graph}.'
)
NPU = 'NPUs: on the NPU: NPU ops, torch.npu.synchronize(), device="npu", PYTORCH_NPU_ALLOC_CONF, NPU graph.'


@pytest.mark.parametrize(
    ("names", "text"),
    [
        *((names, TEXT) for names in (["NVIDIA H200"], [None], [], ["Ascend NPU", "NVIDIA H200"], ["My Ascend"])),
        (["Ascend NPU", "Ascend NPU"], NPU),
        (["Ascend-910B"], NPU),
        (["MTIA ARTEMIS"], NPU.replace("NPU", "MTIA").replace("npu", "mtia")),
    ],
)
def test_texts_are_in_the_words_for_devices_of_one_kind(names: list[str | None], text: str) -> None:
    assert fill(FIELDS, noun_for(names)) == text


def test_no_text_for_npus_names_a_gpu_or_has_an_empty_field() -> None:
    for gpu in ("NPU", GPU):
        texts = [*(advice for rule in RULES for advice in advice_by_case(rule, gpu).values())]
        for cause in (cause for causes in CAUSES.values() for cause in causes.values()):
            texts += filter(None, msgspec.structs.astuple(cause.words_for(gpu)))
        assert not re.search(r"\{(gpu|cuda|CUDA|graph)\}", f"{texts}")
        assert (re.search(r"\bGPU|torch\.cuda", f"{texts}") is None) == (gpu == "NPU")


def test_no_sentence_of_an_npus_report_names_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = TraceView()
    for number in range(6):
        view.host("user_annotation", f"ProfilerStep#{number}", 1000 * number, 990)
        view.kernel(1000 * number + 10, 30, 100 + number)
        view.collective(1000 * number + 500, 200, 200 + number, f"hcom_allReduce__586_{number}_1")
    path = view.write(tmp_path / "rank0.trace_view.json")
    assert main(["analyze", "-v", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "the NPU is idle" in " ".join(shown.split()) and "GPU" not in shown.replace("GPU idle", "")


def of_many_launches(path: Path) -> Path:
    """Write steps of an NPU that wait for launches, for Python and in an op with a name about GPUs."""
    view = TraceView()
    for step in range(6):
        at = 10_000 * step
        view.host("user_annotation", f"ProfilerStep#{step}", at, 9_990)
        for number in range(40):
            view.host("cpu_op", "aten::mul", at + 100 * number, 60)
            view.kernel(at + 100 * number + 10, 5, 1000 * step + number + 1)
        view.host("cpu_op", "move to GPU", at + 4000, 2000, QUEUE)
        view.call("AscendCL@aclrtSynchronizeStream", at + 4010, 1980, 1000 * step + 900)
        view.kernel(at + 8000, 1900, 1000 * step + 901)
    return view.write(path)


def test_names_in_sentences_stay_as_they_were_recorded(tmp_path: Path) -> None:
    report = ov.analyze(of_many_launches(tmp_path / "rank0.trace_view.json"))
    (sync,) = [finding for finding in report.findings if finding.rule == "host-sync"]
    assert sync.title.startswith("The host waits for the NPU in move to GPU, ")
    assert "aclrtSynchronizeStream in move to GPU" in sync.detail


def test_no_advice_for_npus_names_what_only_gpus_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = of_many_launches(tmp_path / "rank0.trace_view.json")
    findings = {finding.rule: finding for finding in ov.analyze(path).findings}
    assert findings["dispatch"].advice.startswith("Launch fewer kernels: ") and findings["dispatch"].saving is None
    for finding in findings.values():
        assert not re.search("torch.compile|reduce-overhead|fused=True", f"{finding.detail} {finding.advice}")
    assert main(["whatif", str(path), "--graph"]) == 0
    shown = capsys.readouterr().out
    assert "Launch fewer kernels: " in shown and "reduce-overhead" not in shown


def test_mtia_is_named(tmp_path: Path) -> None:
    events = [kernel(100 * at, 50, name="fc") | {"cat": "mtia_ccp_events", "pid": 3} for at in range(4)]
    for event in events:
        event["args"]["device"] = 3
    events += [host("user_annotation", "ProfilerStep#1", 0, 500)]
    trace = ov.load(write(tmp_path / "t.json", events, deviceProperties=[{"id": 3, "name": "ARTEMIS"}]), cache=False)
    assert trace.device_names == {3: "MTIA ARTEMIS"}
    assert "GPU" not in str(ov.analyze(trace).traces[0].trust.checks)
