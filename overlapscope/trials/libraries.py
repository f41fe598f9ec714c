"""The changes as options of libraries that run the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from overlapscope.trials.calls import Options

DATA_LOADER: Final = "torch.utils.data.DataLoader"


@dataclass(frozen=True, slots=True)
class Term:
    """A change, as a library has it."""

    function: str
    """The full name of what gets the options."""
    options: Options
    why: str = ""
    """A sentence, where it is not a function of the library's."""

    @property
    def advice(self) -> str:
        """The same in words."""
        return f"{self.why} Pass `{self.options}` to `{self.function.rpartition('.')[2]}`.".lstrip()


def term(library: str, change: str, value: str) -> Term | None:
    """A change of this value in a library's terms; None where it has none."""
    if library == "transformers" and change in (arguments := _training_arguments(value)):
        return Term("transformers.TrainingArguments", arguments[change])
    if library == "accelerate" and change in ("workers", "pin"):
        options = workers(value) if change == "workers" else PIN
        return Term(DATA_LOADER, options, "`accelerator.prepare` makes the DataLoader anew from yours.")
    return None


def workers(value: str) -> Options:
    """So many, by DataLoader's options."""
    return Options((("num_workers", value), ("persistent_workers", "True")), positional=6)


PIN: Final = Options((("pin_memory", "True"),), positional=8)
"""Pinned batches, likewise."""


def _training_arguments(value: str) -> dict[str, Options]:
    changes = {
        "workers": Options((("dataloader_num_workers", value), ("dataloader_persistent_workers", "True"))),
        "pin": Options((("dataloader_pin_memory", "True"),)),
        "non-blocking": Options((("accelerator_config", '{"non_blocking": True}'),), replaced=False),
        "fused": Options((("optim", '"adamw_torch_fused"'),)),
    }
    if value == "compile":
        changes["graph"] = Options((("torch_compile", "True"), ("torch_compile_mode", '"reduce-overhead"')))
    return changes
