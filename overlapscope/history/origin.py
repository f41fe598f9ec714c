"""Where a report comes from, as far as this process can tell: when, of which program, on which commit and host."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from overlapscope.base.revision import revision
from overlapscope.history.entry import Origin


def origin(job: str | None = None, labels: Mapping[str, str] = MappingProxyType({})) -> Origin:
    """That of what this process runs now; `job` is the name of its script where it is not given."""
    script = Path(sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python")
    commit, branch = revision(script.parent)
    return Origin(
        at_ns=time.time_ns(),
        job=job or job_name(script),
        commit=commit,
        branch=branch,
        host=socket.gethostname() or None,
        labels=dict(labels),
    )


def job_name(script: Path) -> str:
    """`train.py`; of a package that is run, its name."""
    name = script.parent.name if script.name == "__main__.py" else script.name
    return os.fsencode(name).decode(errors="backslashreplace")[:200] or "python"
