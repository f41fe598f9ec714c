"""The examination of the installation, part by part."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from overlapscope.base import extras
from overlapscope.base.registry import load
from overlapscope.base.saved import SCHEMA_VERSION, Tool
from overlapscope.base.words import capital, clean, listed, plural, size
from overlapscope.dashboard.launch import has_windows
from overlapscope.doctor import trial as trials
from overlapscope.doctor.trial import TorchTrial
from overlapscope.errors import MissingPackage, UsageError
from overlapscope.plugin import Plugin, plugins

# -- Results, as frozen structures whose names are those of the JSON ---------------------------------

Status = Literal["ok", "missing", "broken"]
"""State of a part: a missing part is optional, and a broken part is installed and fails."""


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of programs and libraries; None for a missing or unknown version."""

    python: str
    system: str
    """Operating system, such as `Linux 6.1.0 x86_64`."""
    torch: str | None = None
    cuda: str | None = None
    """Version of CUDA that PyTorch was built for."""
    rocm: str | None = None
    driver: str | None = None
    """Version of NVIDIA's kernel module, or else of AMD's."""


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the installation."""

    id: str
    status: Status
    detail: str
    """Sentence on the state."""
    remedy: str = ""
    """Advice on how to install or repair it; empty without any."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All parts, in the order of their use."""

    kind: Literal["doctor"] = "doctor"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    location: str
    """Directory of the package."""
    versions: Versions
    gpus: tuple[str, ...]
    checks: tuple[Examined, ...]

    def having(self, status: Status) -> list[str]:
        """Return the ids of the parts with this status."""
        return [check.id for check in self.checks if check.status == status]


# -- The examination ---

_DRIVERS: Final = (
    ("/proc/driver/nvidia/version", r"Kernel Module\b.*?(\d+\.[\d.]+)"),
    ("/sys/module/amdgpu/version", r"(\S+)"),
)
_CAP_SYS_ADMIN: Final = 1 << 21
_BUILDS: Final = "See https://pytorch.org/get-started for the build of PyTorch that fits the driver."


def examine() -> Diagnosis:
    """Examine the installation. Takes a second without PyTorch, and several seconds with it (`trial.run`)."""
    trial = TorchTrial() if "torch" in extras.missing("record") else trials.run()
    driver = next((match[1] for file, pattern in _DRIVERS if (match := re.search(pattern, _read(file)))), None)
    return Diagnosis(
        location=clean(str(Path(__file__).parents[1])),
        versions=Versions(
            python=platform.python_version(),
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            torch=trial.torch,
            cuda=trial.cuda,
            rocm=trial.rocm,
            driver=driver,
        ),
        gpus=tuple(map(clean, trial.gpus)),
        checks=(
            *recording(trial),
            _extra("dashboard"),
            _browser(),
            _extra("cluster"),
            *map(_of_plugin, (plugin for plugin in plugins() if plugin.extra)),
            _reading(),
            _cache(),
        ),
    )


def _read(file: str) -> str:
    try:
        return Path(file).read_text(errors="replace")
    except OSError:
        return ""


def _extra(name: str) -> Examined:
    missing = extras.missing(name)
    if missing:
        detail = f"Not installed: {listed(missing)}. Needed by {extras.extras()[name].serves}."
        return Examined(id=name, status="missing", detail=detail, remedy=extras.how_to_install(name))
    return Examined(id=name, status="ok", detail=f"Installed. Used by {extras.extras()[name].serves}.")


# -- Recording ------------------------------------------------------------------------------------


def recording(trial: TorchTrial) -> Iterator[Examined]:
    """Yield the results for the packages, the GPU, and its recording, each only if the part before it works."""
    error = clean(trial.error)
    if error and not trial.torch:
        yield Examined(id="record", status="broken", detail=f"PyTorch cannot be imported: {error}.", remedy=_BUILDS)
        return
    yield _extra("record")
    if error and not trial.gpus:
        yield Examined(id="gpu", status="broken", detail=f"PyTorch cannot use the GPU: {error}.", remedy=_BUILDS)
    elif trial.torch and not trial.gpus:
        why = clean(trial.why_none)
        yield Examined(id="gpu", status="missing", detail=f"{capital(why)}. Only the host is recorded.")
    elif trial.gpus:
        names = [name if count == 1 else f"{count} {name}" for name, count in Counter(map(clean, trial.gpus)).items()]
        yield Examined(id="gpu", status="ok", detail=f"PyTorch sees {listed(names)}.")
        yield _gpu_recording(trial.recorded, error)


def _gpu_recording(recorded: int | None, error: str) -> Examined:
    counters = "RmProfilingAdminOnly: 1" in _read("/proc/driver/nvidia/params") and not _is_admin()
    if recorded:
        but = " The driver denies this user hardware counters, which overlapscope does not use." if counters else ""
        detail = f"torch.profiler recorded {plural(recorded, 'GPU op')} in a test run.{but}"
        return Examined(id="gpu-recording", status="ok", detail=detail)
    failed = (
        f"torch.profiler failed in a test run: {error}" if error else "torch.profiler recorded no GPU op in a test run"
    )
    if counters:
        detail = f"{failed}. The driver lets only administrators profile (RmProfilingAdminOnly: 1)."
        remedy = (
            "Load the driver with `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d, "
            "or start the container with `--cap-add SYS_ADMIN`."
        )
    else:
        detail = f"{failed}."
        remedy = (
            "Stop other profilers of this GPU (Nsight, DCGM). If that does not help, remove other copies of CUPTI from "
            "LD_LIBRARY_PATH."
        )
    return Examined(id="gpu-recording", status="broken", detail=detail, remedy=remedy)


def _is_admin() -> bool:
    held = re.search(r"^CapEff:\s*([0-9a-f]+)", _read("/proc/self/status"), re.MULTILINE)
    return held is not None and bool(int(held[1], 16) & _CAP_SYS_ADMIN)


# -- Other parts ----------------------------------------------------------------------------------


def _browser() -> Examined:
    if has_windows():
        return Examined(id="browser", status="ok", detail="The dashboard can open a window here.")
    return Examined(
        id="browser",
        status="missing",
        detail="No window can be opened here: there is no display.",
        remedy="`overlapscope dashboard` prints its address, and over SSH the `ssh -L` command for it.",
    )


def _of_plugin(plugin: Plugin) -> Examined:
    extra = _extra(plugin.name)
    if extra.status == "ok" and plugin.check is not None:
        try:
            load(plugin.check)()
        except MissingPackage as error:
            return Examined(id=plugin.name, status="broken", detail=str(error))
    return extra


def _reading() -> Examined:
    from overlapscope.reading._scan import is_compiled

    if is_compiled():
        return Examined(id="reading", status="ok", detail="The compiled reader is installed.")
    return Examined(
        id="reading",
        status="missing",
        detail="The compiled reader is not installed; large traces take about ten times as long to read.",
        remedy="Install a C compiler (`cc`), then overlapscope again; the wheel for Linux has it already.",
    )


def _cache() -> Examined:
    from overlapscope.reading.cache_folder import describe

    try:
        state = describe()
    except UsageError as error:
        return Examined(id="cache", status="broken", detail=str(error))
    if state.problem is not None:
        remedy = "Large traces are read again each time. Set OVERLAPSCOPE_CACHE_DIR to a folder that can be written to."
        return Examined(id="cache", status="missing", detail=clean(state.problem), remedy=remedy)
    held = f"{plural(state.entries or 0, 'trace')}, {size(state.bytes)}; the limit is {size(state.limit_bytes)}"
    return Examined(id="cache", status="ok", detail=f"{clean(state.folder or '')} holds {held}.")
