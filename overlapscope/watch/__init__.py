"""Running programs: plain steps timed all the time, and short recordings now and then, when asked or by the clock."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """Importing any module in here makes this one `overlapscope.watch`, which people call."""

    def __call__(self, *arguments: Any, **options: Any) -> None:
        from overlapscope.watch.api import watch

        watch(*arguments, **options)


sys.modules[__name__].__class__ = _Room
