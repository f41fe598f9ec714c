"""Writes the reference pages that follow from the code: `python -m docs.generate`, which `make docs` runs.

The code alone defines options, JSON fields and rules, so these pages are not kept in the repository.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from overlapscope import glossary
from overlapscope.analysis import measured
from overlapscope.catalog.measures import of_group
from overlapscope.commands import commands, front_parser, subcommand
from overlapscope.commands.schema import schema_of, writers
from overlapscope.documents.model import Text
from overlapscope.installed import built_in_names
from overlapscope.plugins.sql.formats import with_units
from overlapscope.plugins.sql.tables import PROGRAM_WORDS, TABLES
from overlapscope.render import markdown
from overlapscope.start import HELP

HERE = Path(__file__).parent
WIDTH: Final = 100
"""Width of the usage lines."""

_CODE: Final = re.compile(r"\\`.*?\\`")
"""Code as the renderer escapes it."""

_RULES: Final = """# Rules

A rule turns results into advice, which `overlapscope analyze` prints under "Findings". A warning fires where at least
1% of the judged span is at stake. A finding of severity `info` states a fact and costs nothing. [Findings and what they
cost](../how-it-works/numbers.md#findings) explains the figures of a finding.

A rule rests on parts of the recording. If one of these parts may be lost, the rule's result is unknown
([lost parts](../how-it-works/trust.md#lost-parts)).

`overlapscope explain RULE` prints any section of this page.
"""
_GLOSSARY: Final = """# Glossary

Every word that a report prints, and what belongs to it. `overlapscope explain WORD` prints the same.
[Rules](rules.md) and [trust checks](trust-checks.md) have pages of their own.
"""
_CHECKS: Final = """# Trust checks

overlapscope checks every trace before it computes a number, and names each check that warns or fails. This page says
what each check means and what to do. `overlapscope explain CHECK` prints the same; [Trust](../how-it-works/trust.md)
has the limits.
"""
_COMMANDS: Final = """# Command line

Every command and option, as `overlapscope COMMAND --help-all` prints them. The [guides](../guides/index.md) show how to
use them.
"""
_JSON: Final = """# JSON structures

Generated from the schemas that `overlapscope schema` prints. [JSON output](json.md) explains the contract and single
fields.
"""
_SQL: Final = """# Tables of SQL

What `overlapscope query` and `overlapscope.sql` can ask ([guide](../guides/query.md)). `overlapscope query --schema`
prints the same. All times are integer nanoseconds. NULL is what is unknown, or what there is none of.

A statement is a SELECT (also WITH, FROM, DESCRIBE, SUMMARIZE) over the tables. Everything else is refused with a
message: `COPY`, `ATTACH`, `INSTALL`, `PRAGMA`, `SET`, and functions that read files or settings, such as `read_csv`.
PIVOT needs its values (`PIVOT ... ON kind IN ('h2d', 'd2h')`) inside a SELECT. A statement has 60 seconds, or
`--timeout`, and 2 GiB of memory; its result may have 1 GiB.
"""

_STUB_HEAD: Final = """
from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from overlapscope.catalog.measures import Group
"""
_STUB_TYPES: Final = {"ns": "int", "pct": "float | None"}
_STUB_END: Final = """class Measured(TypedDict):
    buckets: Buckets
    engines: Engines
    overlap: Overlap

STRUCTURES: Mapping[Group, type[Any]]

def figures_of(ns: Mapping[str, int], *, shares_of: Mapping[str, int] | None = None) -> Measured: ...
"""


def pages() -> dict[str, str]:
    """Return the text of each page, by its path in `docs/`."""
    entries = glossary.entries()
    rules = [entry for entry in entries if entry.kind.startswith("rule")]
    checks = [entry for entry in entries if entry.kind == "trust check"]
    others = [entry for entry in entries if entry not in rules and entry not in checks]
    return {
        "reference/rules.md": "\n".join([_RULES, _linked(rules), *map(_entry, rules)]),
        "reference/trust-checks.md": "\n".join([_CHECKS, _linked(checks), *map(_entry, checks)]),
        "reference/glossary.md": "\n".join([_GLOSSARY, *_by_kind(others)]),
        "reference/command-line.md": "\n".join([_COMMANDS, *_commands()]),
        "reference/sql-tables.md": "\n".join([_SQL, *_tables()]),
        "reference/json-structures.md": "\n".join([_JSON, *_structures()]),
    }


# -- words ----------------------------------------------------------------------------------------


def _linked(entries: Iterable[glossary.GlossaryEntry]) -> str:
    rows = (f"| [`{entry.word}`](#{entry.word}) | {_cell(entry.summary)} |" for entry in entries)
    return "\n".join(["| | |", "|---|---|", *rows, ""])


def _entry(entry: glossary.GlossaryEntry, *, level: int = 2, anchor: str = "") -> str:
    heading = f"{'#' * level} {entry.word} {{#{anchor or entry.word}}}"
    return "\n".join(
        [heading, "", *_run_in(map(_as_markdown, markdown.lines((Text(entry.summary), *entry.blocks)))), ""]
    )


def _run_in(lines: Iterable[str]) -> Iterator[str]:
    """Lines of markdown in which a part's title stands in bold at the head of its text."""
    title = ""
    for line in lines:
        if line.startswith("### "):
            title = line.removeprefix("### ")
        elif title and line:
            yield f"**{title}:**\n\n{line}" if line.startswith(("- ", "```")) else f"**{title}.** {line}"
            title = ""
        elif not title:
            yield line


def _as_markdown(line: str) -> str:
    """Return a line of markdown whose words are ours: code is code."""
    return _CODE.sub(lambda code: re.sub(r"\\(.)", r"\1", code[0]), line)


def _by_kind(entries: Iterable[glossary.GlossaryEntry]) -> Iterator[str]:
    """Yield a section for each kind, so that a word with two meanings stands in both."""
    kinds: dict[str, list[glossary.GlossaryEntry]] = {}
    for entry in entries:
        kinds.setdefault(entry.kind, []).append(entry)
    for kind, same_kind in kinds.items():
        yield f"## {kind.capitalize()}\n"
        slug = kind.replace(" ", "-")
        yield from (_entry(entry, level=3, anchor=f"{slug}-{entry.word}".replace(" ", "-")) for entry in same_kind)


# -- commands -------------------------------------------------------------------------------------


def _commands() -> Iterator[str]:
    for name in commands():
        command = subcommand(name)
        parser = _parser(f"overlapscope {name}", inspect.cleandoc(command.__doc__ or ""))
        command.prepare_parser(parser)
        yield from _command(parser, level=2)


def _parser(prog: str, description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=prog, description=description, formatter_class=_Wide)


class _Wide(argparse.HelpFormatter):
    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **{**settings, "width": WIDTH})


def _command(parser: argparse.ArgumentParser, *, level: int) -> Iterator[str]:
    """Yield a section for a command, and one for each of its actions."""
    usage = parser.format_usage().removeprefix("usage: ").strip().replace("\n       ", "\n")
    yield f"{'#' * level} {parser.prog}\n\n{parser.description}\n\n```text\n{usage}\n```\n"
    actions = [
        action
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    ]
    if actions:
        rows = (f"| {_cell(_spelled(action))} | {_cell(_help(parser, action))} |" for action in actions)
        yield "\n".join(["| argument | meaning |", "|---|---|", *rows, ""])
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in dict.fromkeys(action.choices.values()):
                yield from _command(inner, level=level + 1)


def _spelled(action: argparse.Action) -> str:
    """`--output FILE`, `-o FILE`."""
    shown = argparse.HelpFormatter("")._format_action_invocation(action)
    return ", ".join(f"`{item}`" for item in shown.split(", "))


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return _as_markdown(markdown.escape(parser._get_formatter()._expand_help(action))) if action.help else ""


def _cell(text: str) -> str:
    """Text as it stands in a row of a table."""
    return " ".join(text.split()).replace("|", "\\|")


# -- SQL ------------------------------------------------------------------------------------------


def _tables() -> Iterator[str]:
    for table in TABLES.values():
        rows = (f"| `{column.name}` | {column.type} | {_cell(with_units(column))} |" for column in table.columns)
        summary = f"A row is {table.rows}. Figures are {PROGRAM_WORDS[table.figures]}."
        yield "\n".join(
            [f"## {table.name}", "", summary, "", "| column | type | meaning |", "|---|---|---|", *rows, ""]
        )


# -- schemas --------------------------------------------------------------------------------------


def _structures() -> Iterator[str]:
    for kind in writers():
        schema = schema_of(kind)
        yield f"## {kind}\n\n`overlapscope schema {kind}` prints it as JSON schema (2020-12).\n"
        for name, structure in schema["$defs"].items():
            yield _structure(kind, name, structure)


def _structure(kind: str, name: str, structure: Mapping[str, Any]) -> str:
    fields = structure.get("properties", {})
    rows = (f"| `{field}` | {_type(kind, shape)} |" for field, shape in fields.items())
    description = markdown.escape(" ".join(structure.get("description", "").split()))
    table = ["| field | type |", "|---|---|", *rows, ""] if fields else []
    return "\n".join([f"### {name} {{#{kind}-{name.lower()}}}", "", description, "", *table])


def _type(kind: str, shape: Mapping[str, Any]) -> str:
    """Return a schema in words: `list of Device`, `integer or null`."""
    if "$ref" in shape:
        name = shape["$ref"].rpartition("/")[2]
        return f"[{name}](#{kind}-{name.lower()})"
    if "anyOf" in shape:
        return " or ".join(_type(kind, item) for item in shape["anyOf"])
    if "enum" in shape:
        return ", ".join(f"`{item}`" for item in shape["enum"])
    if shape.get("type") == "array":
        return f"list of {_type(kind, shape.get('items', {}))}"
    if isinstance(shape.get("additionalProperties"), Mapping):
        return f"map of names to {_type(kind, shape['additionalProperties'])}"
    return str(shape.get("type", "any"))


# -- files of the package ----------------------------------------------------------------------------------------

STUB: Final = Path(measured.__file__).with_suffix(".pyi")


def stub() -> str:
    """Return the types of the structures that are made from the catalogue of measures."""
    lines = [f'"""{inspect.cleandoc(measured.__doc__ or "")}\n"""', _STUB_HEAD]
    for group, structure in measured.STRUCTURES.items():
        lines.append(f"class {structure.__name__}(msgspec.Struct, frozen=True, kw_only=True):")
        lines += [f"    {measure.id}: {_STUB_TYPES[measure.unit]}" for measure in of_group(group)]
        lines.append("    def named(self) -> dict[str, int]: ...\n" if group == "buckets" else "")
    return "\n".join([*lines, _STUB_END])


def front_help() -> str:
    """Return the content of the file from which the command line prints its list of commands."""
    return f"{' '.join(built_in_names())}\n{front_parser().format_help()}"


def main() -> None:
    for path, text in pages().items():
        (HERE / path).write_text(text, encoding="utf-8")
    STUB.write_text(stub(), encoding="utf-8")
    Path(HELP).write_text(front_help(), encoding="ascii")


if __name__ == "__main__":
    main()
