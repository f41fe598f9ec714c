"""The changes as options of libraries that run the training loop."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from overlapscope.plugins.trials.calls import CallOptions
from overlapscope.plugins.trials.changes import COMPILE_MODES

DATA_LOADER: Final = "torch.utils.data.DataLoader"


TRAINING_ARGUMENTS: Final = "transformers.TrainingArguments"


class Term(Struct, frozen=True):
    """A change made with options of `TrainingArguments`."""

    options: CallOptions
    otherwise: str = ""
    """Alternative for programs without such arguments."""

    @property
    def advice(self) -> str:
        """The change in words."""
        return f"Pass `{self.options}` to `TrainingArguments`{self.otherwise}."


def term(library: str, change: str, value: str) -> Term | None:
    """Return a change in a library's terms; None if the library has no such option."""
    options = _training_arguments(value).get(change)
    if options and library == "transformers":
        return Term(options)
    if options and library == "accelerate" and change == "non-blocking":
        # Transformers' Trainer has accelerate move its batches.
        alone = "`dataloader_config=DataLoaderConfiguration(non_blocking=True)` to `Accelerator`"
        return Term(options, f", or {alone} where there is no Trainer")
    return None


def workers(value: str) -> CallOptions:
    """Return the DataLoader options for this many workers."""
    return CallOptions((("num_workers", value), ("persistent_workers", "True")), positional=6)


PIN: Final = CallOptions((("pin_memory", "True"),), positional=8)
"""DataLoader options for pinned batches."""


def _training_arguments(value: str) -> dict[str, CallOptions]:
    changes = {
        "workers": CallOptions((("dataloader_num_workers", value), ("dataloader_persistent_workers", "True"))),
        "pin": CallOptions((("dataloader_pin_memory", "True"),)),
        "non-blocking": CallOptions((("accelerator_config", '{"non_blocking": True}'),), replaced=False),
        "fused": CallOptions((("optim", '"adamw_torch_fused"'),)),
    }
    if value in COMPILE_MODES:
        mode = ("torch_compile_mode", f'"{COMPILE_MODES[value]}"')
        changes["graph"] = CallOptions((("torch_compile", "True"), mode))
    return changes
