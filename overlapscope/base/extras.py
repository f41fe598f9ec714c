"""Optional parts of the package: their modules, and how to install them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from overlapscope.plugin import Extra, plugins

CPU_TORCH: Final = "pip install torch --index-url https://download.pytorch.org/whl/cpu"


_OF_CORE: Final = {
    "record": Extra(
        ("torch", "tensordict", "libcst"),
        "overlapscope run, overlapscope try, overlapscope.record, the pytest plugin and overlapscope scenarios run",
        "On Linux this downloads 2.8 GB, because PyTorch on PyPI is the CUDA build. If there is no GPU, first install "
        f"the CPU build: `{CPU_TORCH}`. For ROCm and other builds, see https://pytorch.org/get-started. "
        "Reading traces needs no PyTorch.",
        ("py-spy",),
    ),
    "dashboard": Extra(
        ("dash", "dash_ag_grid", "dash_mantine_components", "waitress"),
        "overlapscope dashboard and overlapscope.show",
    ),
    "cluster": Extra(("dask", "distributed", "fsspec"), "overlapscope ranks on a cluster or with URLs"),
}


def extras() -> Mapping[str, Extra]:
    """Return all extras by name: the core's, then those of plugins."""
    return _OF_CORE | {plugin.name: plugin.extra for plugin in plugins() if plugin.extra is not None}


def missing(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [module for module in extras()[extra].modules if find_spec(module) is None]


def how_to_install(extra: str) -> str:
    """Return sentences with the command that installs an extra, and its size."""
    return f"Install it with `{install_line(extra)}`. {extras()[extra].brings}".rstrip()


def install_line(extra: str) -> str:
    """Return the command that adds an extra to this installation, from a checkout, a file, a repository or PyPI."""
    try:
        origin = metadata.distribution("overlapscope").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        # Overlapscope runs from a checkout that was never installed.
        checkout = Path(__file__).parents[2]
        origin = json.dumps({"url": checkout.as_uri(), "dir_info": {"editable": True}})
    return f"pip install {_requirement(extra, json.loads(origin or '{}'))}"


def _requirement(extra: str, origin: dict[str, Any]) -> str:
    """Return the arguments of `pip install`; `origin` is pip's note of the origin (PEP 610), absent for an index."""
    url = str(origin.get("url", ""))
    if url.startswith("file:"):
        path = unquote(urlsplit(url).path)
        if Path(path).exists():
            editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
            return editable + shlex.quote(f"{path}[{extra}]")
    elif vcs := origin.get("vcs_info"):
        return shlex.quote(f"overlapscope[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}")
    elif url:
        return shlex.quote(f"overlapscope[{extra}] @ {url}")
    # Nothing is published yet, so the user has a checkout.
    return f"-e {shlex.quote(f'.[{extra}]')}"
