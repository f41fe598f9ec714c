"""Tests of `overlapscope doctor`: each part's status, and the advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlapscope.base import extras
from overlapscope.base.saved import encode
from overlapscope.commands import main
from overlapscope.commands.doctor import document
from overlapscope.doctor.examine import Diagnosis, Examined, Versions, recording
from overlapscope.doctor.trial import TorchTrial
from overlapscope.render import markdown, terminal

H100 = "NVIDIA H100"


@pytest.mark.parametrize(
    ("trial", "statuses", "message"),
    [
        (TorchTrial(torch="2.13", why_none="this PyTorch sees none"), ["missing"], "This PyTorch sees none. Only"),
        (
            TorchTrial(error="ImportError: libcudart.so.13"),
            ["broken"],
            "cannot be imported: ImportError: libcudart.so.13",
        ),
        (TorchTrial(torch="2.13", error="RuntimeError: no driver"), ["broken"], "cannot use the GPU: RuntimeError"),
        (TorchTrial(torch="2.13", gpus=(H100, H100), recorded=3), ["ok", "ok"], "sees 2 NVIDIA H100. "),
        (TorchTrial(torch="2.13", gpus=(H100,), recorded=3), ["ok", "ok"], "recorded 3 GPU ops in a test run"),
        (TorchTrial(torch="2.13", gpus=(H100,), recorded=0), ["ok", "broken"], "recorded no GPU op in a test run"),
        (TorchTrial(torch="2.13", gpus=(H100,), error="CUPTI_ERROR"), ["ok", "broken"], "in a test run: CUPTI_ERROR"),
        (TorchTrial(torch="2.13", gpus=("x\x1b[31m",), recorded=1), ["ok", "ok"], r"sees x\x1b[31m."),
    ],
)
def test_what_pytorch_said_becomes_a_status_for_each_part(trial: TorchTrial, statuses: list[str], message: str) -> None:
    # torch and tensordict may or may not be installed here.
    examined = [check for check in recording(trial) if check.id != "record" or check.status == "broken"]
    assert [check.status for check in examined] == statuses
    assert message in " ".join(f"{check.detail} " for check in examined)
    assert all(check.remedy for check in examined if check.status == "broken")


def diagnosis(*checks: Examined) -> Diagnosis:
    versions = Versions(python="3.11.7", system="Linux", torch="2.13.0", cuda="13.0")
    return Diagnosis(location="/somewhere/overlapscope", versions=versions, gpus=(), checks=checks)


def test_the_outcome_comes_first_and_what_to_do_last() -> None:
    remedy = extras.how_to_install("cluster")
    result = diagnosis(
        Examined(id="record", status="ok", detail="Installed."),
        Examined(id="cluster", status="missing", detail="Not installed: dask.", remedy=remedy),
    )
    text = terminal.render(document(result), width=80)
    assert text.startswith("Nothing is broken. Missing: cluster. Traces can be read")
    assert max(map(len, text.splitlines())) <= 80
    assert "cluster: Install it with pip install " in " ".join(text.partition("What to do")[2].split()).replace("`", "")
    assert "CUDA of PyTorch" in text and "ROCm" not in text
    assert f"`{extras.install_line('cluster')}`" in markdown.render(document(result))


def test_what_is_broken_is_named_first() -> None:
    text = terminal.render(document(diagnosis(Examined(id="gpu", status="broken", detail="It hangs."))), width=80)
    assert text.startswith("Broken: gpu.\n")


def test_a_diagnosis_is_not_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "doctor.json"
    path.write_bytes(encode(diagnosis()))
    assert main(["check", str(path)]) == 2
    assert "is a diagnosis of an installation" in capsys.readouterr().err
