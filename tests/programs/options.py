"""Options that all scripts share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScriptOptions:
    """Command line of a script."""

    steps: int
    """Number of steps of the script."""
    device: str

    @property
    def cuda(self) -> bool:
        """True if the script runs on a GPU: memory can be pinned, streams and graphs can be used."""
        return self.device == "cuda"

    def size(self, on_gpu: int, on_cpu: int) -> int:
        """Return a size; small where the script only has to run."""
        return on_gpu if self.cuda else on_cpu
