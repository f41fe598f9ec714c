"""Jupyter notebooks as programs: their code cells, one after the other."""

from __future__ import annotations

import ast
import json
import linecache
import re
from types import CodeType

from overlapscope.errors import UsageError

_IPYTHON = ("%", "!", "?")
"""Prefixes of lines in IPython's own language."""
_TIMED = re.compile(r"%(?:time|timeit|prun|memit)\s+(?:-(?:[nrpslTD]\s*\S+|\w)\s+)*(?P<statement>[^-\s].*)")
"""A magic that runs a Python statement. Some of its options have a value: `%timeit -q -n 3 f()`."""
_ASSIGNED = re.compile(r"(?P<target>\s*[\w.,\s\[\]]+=\s*)(?P<magic>[%!].*)")
"""The output of a magic or a shell command that is given a name: `files = !ls`."""


def compiled(path: str, source: bytes) -> CodeType:
    """Compile a notebook, without the lines that only IPython understands, and let tracebacks show its lines.

    Returns:
        The code of all its cells, as one module.

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
    for _ in range(len(lines)):
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            # A line of a string, or a line that continues an expression with `%`, is Python.
            place = (error.lineno or 0) - 1
            if not 0 <= place < len(lines):
                break
            python = _without_magic(lines[place])
            if python is None:
                break
            lines[place] = python
        else:
            break
    return "\n".join(lines)


def _without_magic(line: str) -> str | None:
    """Return a line of IPython's as Python, or None if it isn't one."""
    code = line.lstrip()
    indent = line[: len(line) - len(code)]
    if timed := _TIMED.fullmatch(code):
        return f"{indent}{timed['statement']}"
    if code.startswith(_IPYTHON):
        # A block needs a statement; at the beginning of a line, `__future__` may follow.
        return f"{indent}pass  # {code}" if indent else f"# {code}"
    if assigned := _ASSIGNED.fullmatch(line):
        if timed := _TIMED.fullmatch(assigned["magic"]):
            return f"{assigned['target']}{timed['statement']}"
        return f"{assigned['target']}[]  # {assigned['magic']}"
    return None
