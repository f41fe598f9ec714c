"""Jupyter notebooks as programs: their code cells, one after the other."""

from __future__ import annotations

import json
import linecache
from types import CodeType

from overlapscope.errors import UsageError

_IPYTHON = ("%", "!", "?")
"""What a line of IPython's own language begins with."""


def compiled(path: str, source: bytes) -> CodeType:
    """Compile a notebook, without the lines that only IPython understands, and let tracebacks show its lines.

    Raises:
        UsageError: The file is not a notebook.
        SyntaxError: Its code is not Python.
    """
    try:
        cells = json.loads(source)["cells"]
        code = [_text(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path}: is not a notebook of Jupyter; save it again, or name a script.") from None
    text = "\n".join(map(_python, code)) + "\n"
    name = f"{path}, code cells"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    return compile(text, name, "exec", dont_inherit=True)


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _python(cell: str) -> str:
    """Return a cell with the same number of lines, of which those for IPython do nothing."""
    lines = cell.splitlines()
    # A magic that times or captures a cell leaves it in Python; others, as for a shell, do not.
    if cell.startswith("%%") and not cell.startswith(("%%time", "%%capture", "%%prun")):
        return "\n".join(f"# {line}" for line in lines)
    return "\n".join(map(_line, lines))


def _line(line: str) -> str:
    code = line.lstrip()
    return f"{line[: len(line) - len(code)]}pass  # {code}" if code.startswith(_IPYTHON) else line
