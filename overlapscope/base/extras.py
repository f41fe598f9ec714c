"""The package's optional parts: what each imports, and how to install it for whoever has this package."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

CPU_TORCH: Final = "pip install torch --index-url https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True, slots=True)
class Extra:
    """One of `project.optional-dependencies`."""

    modules: tuple[str, ...]
    """What its packages are imported as."""
    serves: str
    """What needs it."""
    brings: str = ""
    """Sentences on what is large about it, measured with what requirements/ci.txt has."""


EXTRAS: Final = {
    "record": Extra(
        ("torch", "tensordict", "libcst"),
        "overlapscope run, overlapscope try, overlapscope.record, the pytest plugin and overlapscope scenarios run",
        "On Linux this downloads 2.8 GB, because PyTorch on PyPI is the CUDA build. If there is no GPU, first install "
        f"the CPU build: `{CPU_TORCH}`. For ROCm and other builds, see https://pytorch.org/get-started. "
        "Reading traces needs no PyTorch.",
    ),
    "dashboard": Extra(
        ("dash", "dash_ag_grid", "dash_mantine_components", "waitress"),
        "overlapscope dashboard and overlapscope.show",
    ),
    "hta": Extra(
        ("hta",),
        "overlapscope hta (HolisticTraceAnalysis)",
        "This also installs JupyterLab: about 90 packages, 200 MB on disk.",
    ),
    "history": Extra(
        ("fsspec", "pyarrow", "ruptures", "scipy"),
        "changes in level of overlapscope history, its Parquet files, and histories at URLs",
    ),
    "query": Extra(("duckdb", "pyarrow"), "overlapscope query and overlapscope.sql"),
    "mcp": Extra(("mcp", "duckdb", "pyarrow"), "overlapscope mcp"),
    "cluster": Extra(("dask", "distributed", "fsspec"), "overlapscope ranks with several workers or with URLs"),
}
"""By name."""


def missing(extra: str) -> list[str]:
    """Which modules of an extra are not installed."""
    return [module for module in EXTRAS[extra].modules if find_spec(module) is None]


def how_to_install(extra: str) -> str:
    """Sentences with the line that installs an extra, and what that brings."""
    return f"Install it with `{install_line(extra)}`. {EXTRAS[extra].brings}".rstrip()


def install_line(extra: str) -> str:
    """The command that adds an extra to this very installation: of a checkout, a file, a repository or PyPI."""
    try:
        origin = metadata.distribution("overlapscope").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        # Run from a checkout that was never installed.
        checkout = Path(__file__).parents[2]
        origin = json.dumps({"url": checkout.as_uri(), "dir_info": {"editable": True}})
    return f"pip install {_requirement(extra, json.loads(origin or '{}'))}"


def _requirement(extra: str, origin: dict[str, Any]) -> str:
    """What stands behind `pip install`; `origin` is what pip noted (PEP 610), nothing of what came from an index."""
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
    return shlex.quote(f"overlapscope[{extra}]")
