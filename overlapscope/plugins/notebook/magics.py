"""The magics `%overlapscope` and `%%overlapscope`, which record code and show the report and the timeline below it."""

from __future__ import annotations

import ast
import re
from html import escape
from pathlib import Path
from typing import Final

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.display import display

from overlapscope import timeline
from overlapscope.analysis import analyze_trace
from overlapscope.documents.model import Document, Section, TimelineBlock, brief
from overlapscope.reading import load
from overlapscope.recorder.recording import record
from overlapscope.render import html, terminal
from overlapscope.report.document import document
from overlapscope.report.model import build
from overlapscope.report.page import Page, sampled_hosts
from overlapscope.timeline import file as timeline_file

_HEIGHT_PX: Final = 480
_OPTION: Final = re.compile(r"""\s*(?:-o\s+(?P<file>'[^']+'|"[^"]+"|\S+)|--stacks)(?=\s|$)""")
"""An option at the beginning of a line. IPython's parser of options changes quotes in the code after them."""


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics, as `%load_ext overlapscope` does."""
    shell.register_magics(OverlapscopeMagics)


@magics_class
class OverlapscopeMagics(Magics):
    """The magics. IPython shows their docstring for `%overlapscope?`."""

    @no_var_expand
    @line_cell_magic
    def overlapscope(self, line: str, cell: str | None = None) -> object:
        """Record code with torch.profiler, and show what does not overlap, why, and the timeline.

            %overlapscope [-o FILE] [--stacks] train(model, batches)

            %%overlapscope [-o FILE] [--stacks]
            for batch in batches:
                train_step(batch)

        Steps are calls that repeat, such as those of an optimizer, or end at `overlapscope.step()`. The recording is
        in FILE (default: cell.trace.json.gz); --stacks records the lines of Python, and slows the host.

        Args:
            line: Options and, without a cell, the code.
            cell: The other lines.

        Returns:
            The value of the last expression.

        Raises:
            UsageError: The code is missing, or the first line of a cell has more than options.
        """
        __tracebackhide__ = True
        shell = self.shell
        assert shell is not None
        path, stacks = "cell.trace.json.gz", False
        while option := _OPTION.match(line):
            path, stacks = (option["file"] or path).strip("'\""), stacks or not option["file"]
            line = line[option.end() :]
        if cell is not None and line.strip():
            raise UsageError(f"{line.strip()}: is no option; the code stands below the line of %%overlapscope.")
        if cell is None and not line.strip():
            raise UsageError("name the code to record, as in `%overlapscope train(model, batches)`.")
        # Code that can't run must not replace a recording.
        name, tree = _parsed(shell, line if cell is None else cell)
        with record(path, stacks=stacks) as recording:
            value = _run(shell, name, tree)
        _show(recording.path)
        return value


def _parsed(shell: InteractiveShell, code: str) -> tuple[str, ast.Module]:
    """Return the name that tracebacks have for code, and its tree. Raises SyntaxError."""
    source: str = shell.transform_cell(code)  # type: ignore[no-untyped-call]
    name = shell.compile.cache(source, raw_code=code)
    return name, ast.parse(source, name)


def _run(shell: InteractiveShell, name: str, tree: ast.Module) -> object:
    """Run code as a cell does, and return the value of its last expression. Exceptions of the code pass."""
    __tracebackhide__ = True
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(shell.compile(tree, name, "exec"), shell.user_ns)  # type: ignore[arg-type]
    if not isinstance(last, ast.Expr):
        return None
    return eval(shell.compile(ast.Expression(last.value), name, "eval"), shell.user_ns)  # type: ignore[arg-type]


def _show(path: Path) -> None:
    """Show the report on a recording and, in a notebook, its timeline."""
    analysis = analyze_trace(load(path, progress=False, cache=False))
    page = Page(build([analysis]), sampled=sampled_hosts([analysis]))
    drawn = [*_timelines(timeline_file.document(page, [timeline.build(analysis)]))]
    text = terminal.render(brief(document(page)))
    shown = {"text/plain": text, "text/html": f'<pre style="white-space: pre">{escape(text)}</pre>'}
    if drawn:
        source = escape(html.render(Document(path.name, tuple(drawn))))
        style = f"width: 100%; height: {_HEIGHT_PX}px; border: 0"
        shown["text/html"] += f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{source}"></iframe>'
    display(shown, raw=True)  # type: ignore[no-untyped-call]


def _timelines(block: Document | Section) -> list[TimelineBlock]:
    timelines: list[TimelineBlock] = []
    for inner in block.blocks:
        if isinstance(inner, TimelineBlock):
            timelines.append(inner)
        elif isinstance(inner, Section):
            timelines += _timelines(inner)
    return timelines
