"""Errors that a user can do something about: one class for each thing to do."""

from __future__ import annotations


class OverlapscopeError(Exception):
    """Base class of overlapscope's errors: `Error(reason)`, or `Error(source, reason)` for one about a file.

    The text is a sentence for the user, and begins with the source.
    """

    def __init__(self, *args: object, for_assistants: str | None = None) -> None:
        """Create an error; `for_assistants` is its text where options of the command line don't exist, if different."""
        super().__init__(*args)
        self.for_assistants = str(self) if for_assistants is None else for_assistants

    def __str__(self) -> str:
        return ": ".join(map(str, self.args))

    @property
    def reason(self) -> str:
        """The text without the source."""
        return str(self.args[-1]) if self.args else ""


class UnreadableTrace(OverlapscopeError):
    """A trace cannot be read; the text names the file, what is wrong and what to do."""


class UsageError(OverlapscopeError):
    """A request makes no sense; the text says how to ask instead."""


class NotInTrace(UsageError):
    """A trace has no device, step, range or call of that name; the text says what it has."""


class ConfigError(UsageError):
    """A configuration or a budget makes no sense; the text names the file, the key and the allowed values."""


class MissingPackage(OverlapscopeError):
    """A package that this needs is not installed; the text says what to install."""


class RecordingFailed(OverlapscopeError):
    """A recording could not be made or written; the text says why."""


class ClusterFailed(OverlapscopeError):
    """Traces could not be read by other processes or by a Dask cluster; the text says why and what to do."""
