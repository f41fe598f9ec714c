"""An assistant: the SDK's own client, and `overlapscope mcp` as the process that it starts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp_types import TextContent

pytest.importorskip("overlapscope.plugins.assistant")


class ToolError(Exception):
    """Answer that is an error."""


class Assistant:
    """Asks tools, and reads their answers."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self.portal, self.client = portal, client

    def text(self, tool: str, **arguments: object) -> str:
        """Return a tool's answer. Raises ToolError."""
        done = self.portal.call(partial(self.client.call_tool, tool, arguments))
        [content] = done.content
        assert isinstance(content, TextContent)
        if done.is_error:
            raise ToolError(content.text)
        return content.text

    def ask(self, tool: str, **arguments: object) -> dict[str, Any]:
        """Return the same as a mapping."""
        answer: dict[str, Any] = json.loads(self.text(tool, **arguments))
        return answer

    def all(self, tool: str, called: str, **arguments: object) -> list[Any]:
        """Return the items of all pages."""
        pages = self.ask(tool, **arguments).get("pages", 1)
        return [item for page in range(1, pages + 1) for item in self.ask(tool, **arguments, page=page)[called]]


@contextmanager
def assistant(*directories: str | Path) -> Iterator[Assistant]:
    """Yield an assistant that may ask about these directories."""
    command = StdioServerParameters(command=sys.executable, args=["-m", "overlapscope", "mcp", *map(str, directories)])
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(command)) as client,
    ):
        yield Assistant(portal, client)
