"""Tests of the pages in `docs/` and at the top level: their links resolve, and their commands work.

    pytest tests/core/project/test_docs.py --update-golden      # writes the outputs that pages quote anew

Blocks of `sh`, `console`, `python` and `toml` are run, in a directory of bundled recordings. `console` blocks quote
the output of commands (`$ COMMAND`, `| head -n N` included); `sh` blocks quote nothing. Commands that cannot
run here are in `NOT_RUN`, or the page says why before the block: `<!-- not run: needs a GPU -->`.
"""

from __future__ import annotations

import argparse
import lzma
import re
import shlex
import shutil
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml

import overlapscope
from docs.generate import STUB, front_help, pages, stub
from overlapscope import errors
from overlapscope.catalog.checks import trust_checks
from overlapscope.catalog.interventions import INTERVENTIONS
from overlapscope.commands import commands, main, subcommand
from overlapscope.reading.samples import SAMPLES
from overlapscope.start import HELP
from tests.support.documented import BLOCKS, DOCS, ROOT, TAUGHT, CodeBlock, lines

WIDTH = 80
"""Width of the terminal for quoted outputs."""
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
NOT_RUN = {
    "bisect v1.2": "records the commits of a repository: tests/plugins/ci/process/test_bisect.py",
    "run": "records a program: tests/exhaustive/test_documentation.py",
    "record": "records a running program: tests/plugins/watch/torch/test_watch.py",
    "dashboard": "serves until Ctrl-C: tests/browser",
    "doctor": "looks at this machine, and starts processes: tests/torch/test_doctor.py",
    "completion": "writes into the home directory: tests/process",
    "hta": "needs HolisticTraceAnalysis: tests/plugins/hta",
    "ranks": "starts processes: tests/process",
    "whatif traces/": "starts processes: tests/process",
    "whatif train.traces": "starts processes: tests/process",
    "try": "runs a program many times: tests/plugins/trials/torch/test_try.py",
    "scenarios run": "needs a GPU: tests/torch",
    "scenarios calibrate": "needs a GPU: tests/gpu",
    "scenarios list": "needs PyTorch: tests/torch",
}
"""Commands whose arguments are parsed and no more, and why."""
OTHER_PROGRAMS = {
    "claude",
    "nsys",
    "pip",
    "cd",
    "make",
    "mkdir",
    "ssh",
    "torchrun",
    "dask",
    "pytest",
    "python",
    "git",
    "sqlite3",
}
"""Programs that a block may call that are not ours; their lines are not run."""
REASONS = {"needs a GPU", "needs a server", "needs PyTorch", "needs HolisticTraceAnalysis"}
LANGUAGES = {"sh", "console", "python", "toml", "text", "json", "yaml", "groovy", "html"}


@cache
def generated_pages() -> set[Path]:
    """Return the pages that follow from the code."""
    return {DOCS / path for path in pages()}


def _of(*languages: str) -> pytest.MarkDecorator:
    chosen = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", chosen, ids=[block.id for block in chosen])


# -- the site -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_picture_is_there(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)\s#]+)", page.read_text(encoding="utf-8"))
    wanted = {target: (page.parent / target).resolve() for target in targets}
    assert {target for target, path in wanted.items() if not path.exists() and path not in generated_pages()} == set()


def test_every_page_stands_in_the_navigation_once() -> None:
    listed: list[str] = []

    def walk(entry: object) -> None:
        for inner in entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else ():
            walk(inner)
        if isinstance(entry, str):
            listed.append(entry)

    walk(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    there = {*DOCS.rglob("*.md")} | generated_pages()
    assert sorted(listed) == sorted(str(path.relative_to(DOCS)) for path in there)


def test_the_api_page_has_every_public_name() -> None:
    named = set(re.findall(r"^::: overlapscope\.(\w+)$", (DOCS / "reference/python.md").read_text(), re.MULTILINE))
    assert named >= {name for name in overlapscope.__all__ if not name.startswith("_")}


def test_the_guide_to_predictions_has_every_change() -> None:
    changes = (DOCS / "guides/whatif.md").read_text().partition("## The changes")[2].partition("They combine")[0]
    assert sorted(re.findall(r"`--([\w-]+)", changes)) == sorted(INTERVENTIONS)


def test_the_command_line_page_has_every_command() -> None:
    page = pages()["reference/command-line.md"]
    assert [name for name in commands() if f"\n## overlapscope {name}\n" not in page] == []
    assert "### overlapscope cache clear" in page and "`--write-baseline`" in page and "`--max-size SIZE`" in page


def test_troubleshooting_has_every_error_and_every_trust_check() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert [kind.__name__ for kind in kinds if f"`{kind.__name__}`" not in text] == []
    package = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "overlapscope").rglob("*.py"))
    rows = re.findall(r"^\| (`.*?`) \| (?!the )", text.partition("## Errors")[2], re.MULTILINE)
    quoted = [message for row in rows for message in re.findall(r"`(.*?)`", row)]
    assert len(quoted) > 10 and [message for message in quoted if message not in package] == []
    checks = pages()["reference/trust-checks.md"]
    assert [id for id in trust_checks() if f"\n## {id} {{#{id}}}\n" not in checks] == []
    assert all(check.meaning and check.remedy for check in trust_checks().values())


def test_figures_on_the_overview_of_the_evaluation_are_those_of_its_pages() -> None:
    overview = (DOCS / "evaluation/index.md").read_text()
    for section in overview.split("\n## ")[1:]:
        linked = re.findall(r"\]\(([\w-]+\.md)\)", section)
        evaluation = "".join((DOCS / "evaluation" / page).read_text() for page in linked)
        figures = re.findall(r"\d+[.,]?\d*(?:%| ms| s| times| of \d+)", section)
        assert linked and [figure for figure in figures if figure not in evaluation] == [], section.splitlines()[0]


# -- commands of the pages --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the files that the pages name."""
    place = tmp_path_factory.mktemp("furnished")
    for sample in SAMPLES.iterdir():
        (place / sample.name).symlink_to(sample)
    for name, recorded in {
        "trace": "training_naive",
        "train.trace": "training_naive",
        "nightly": "training_prefetched",
        "before.trace": "training_naive",
        "after.trace": "training_prefetched",
    }.items():
        shutil.copy(SAMPLES / f"{recorded}.json.gz", place / f"{name}.json.gz")
    # Recorded by `overlapscope run --stacks` on an H100; frames around no call were removed.
    for recording in (ROOT / "tests" / "programs" / "contract").iterdir():
        shutil.copy(recording, place)
    for name in ("traces", "train.traces", "runs/before", "runs/after"):
        shutil.copytree(SAMPLES / "ddp", place / name)
    shutil.copytree(SAMPLES / "laboratory", place / "h200")
    for recording in (ROOT / "traces" / "jax").iterdir():
        shutil.copy(recording, place)
    run = place / "jax-log" / "plugins" / "profile" / "2026_11_22_21_37_17"
    run.mkdir(parents=True)
    shutil.copy(place / "late.xplane.pb", run / "host.xplane.pb")
    for name, recorded in {"report": "one_copy", "train": "train_2gpu"}.items():
        packed = (ROOT / "traces" / "nsys" / f"{recorded}.sqlite.xz").read_bytes()
        (place / f"{name}.sqlite").write_bytes(lzma.decompress(packed))
    (place / "train.py").write_text("print('trained')\n")
    baseline = ["--write-baseline", "--baseline", str(place / "baseline.json")]
    assert main(["check", str(place / "train.trace.json.gz"), *baseline]) == 0
    nightly = ["--job", "nightly.py", "--history", str(place / "history.sqlite")]
    assert main(["history", "add", str(place / "nightly.json.gz"), *nightly]) == 0
    return place


@pytest.fixture
def place(furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of it to work in."""
    shutil.copytree(furnished, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("OVERLAPSCOPE_HISTORY", "history.sqlite")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return tmp_path


def _run(line: str) -> None:
    program, *arguments = shlex.split(line)
    if program in OTHER_PROGRAMS:
        return
    assert program == "overlapscope", line
    if any(f"{shlex.join(arguments)} ".startswith(f"{name} ") for name in NOT_RUN):
        parser = argparse.ArgumentParser()
        subcommand(arguments[0]).prepare_parser(parser)
        parser.parse_args(arguments[1:])
        return
    assert main(arguments) in (0, 1, 3), line


def test_blocks_are_fenced_and_say_their_language() -> None:
    assert {block.id: block.language for block in BLOCKS if block.language not in LANGUAGES} == {}
    assert {block.id: block.not_run for block in BLOCKS if block.not_run and block.not_run not in REASONS} == {}
    for page in TAUGHT:
        prose = re.sub(r"^( *)```.*?^\1```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not re.findall(r"\n\n    \S.*", prose), page


@_of("sh")
def test_commands_run(block: CodeBlock, place: Path) -> None:
    for line in lines(block.text):
        _run(line)


@_of("console")
def test_quoted_outputs_are_those_of_the_commands(
    block: CodeBlock, place: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    quoted = ""
    for line in re.findall(r"^\$ (.*)$", block.text, re.MULTILINE):
        command, _, most = line.partition(" | head -n ")
        _run(command)
        printed = capsys.readouterr().out.splitlines()
        shown = "\n".join(item.rstrip() for item in (printed[: int(most)] if most else printed))
        quoted += f"$ {line}\n{shown}\n"
    if request.config.getoption("--update-golden"):
        text = block.page.read_text()
        block.page.write_text(text.replace(f"```console\n{block.text}```", f"```console\n{quoted}```"))
    assert quoted == block.text, "look at it, then --update-golden"


def test_the_readme_quotes_what_its_commands_print(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its blocks are indented, and hold commands, or lines that these print."""
    shown = [
        item.strip() for item in re.findall(r"^ {4}(\S.*| +\S.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    ]
    commands = [line for line in shown if line.split()[0] in {"overlapscope", *OTHER_PROGRAMS}]
    capsys.readouterr()
    for line in lines("\n".join(commands)):
        _run(line)
    printed = {line.strip() for line in capsys.readouterr().out.splitlines()}
    assert len(commands) > 3
    assert [line for line in shown if line not in commands and line not in printed] == []


@_of("python")
def test_python_runs(block: CodeBlock, place: Path) -> None:
    code = compile(block.text, block.id, "exec")
    if not block.not_run:
        exec(code, {"__name__": "docs"})


@_of("toml")
def test_configurations_are_understood(block: CodeBlock, place: Path) -> None:
    read = tomllib.loads(block.text)
    name = "pyproject.toml" if "tool" in read else "overlapscope.toml"
    (place / name).write_text(block.text)
    assert main(["check", "trace.json.gz", "--config", name, "--baseline", "baseline.json"]) in (0, 1, 3)


def test_one_page_says_how_to_install_overlapscope() -> None:
    own = re.compile(r"pip\s+install\s+(?:-e\s+)?'?(?:overlapscope|\.\[)")
    assert {page.name for page in TAUGHT if own.search(page.read_text())} == {"install.md"}


def test_extras_that_pages_install_are_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {
        extra
        for block in BLOCKS
        for group in re.findall(r"pip install .*\[([\w,]+)\]", block.text)
        for extra in group.split(",")
    }
    assert asked and asked <= set(extras)


def test_the_stub_has_the_fields_of_the_catalogue_of_measures() -> None:
    assert STUB.read_text(encoding="utf-8") == stub(), "write it anew: make renew"


def test_the_list_of_commands_in_the_package_is_what_the_command_line_makes() -> None:
    assert Path(HELP).read_text(encoding="ascii") == front_help(), "write it anew: make renew"
