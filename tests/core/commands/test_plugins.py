"""Plugins: another package registers a command, an extra and a kind of file by its manifest."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from msgspec import Struct

from overlapscope.base import extras
from overlapscope.commands import main
from overlapscope.errors import UnreadableTrace, UsageError
from overlapscope.glossary import GlossaryEntry, entries
from overlapscope.inputs import read_report
from overlapscope.installed import GROUP, others_registered
from overlapscope.plugin import Command, Extra, ObserverOption, Plugin, plugins
from overlapscope.reading.files import kind_of
from overlapscope.recorder.options import Options
from tests.support.toy_plugin import Registered, registering


class ToyCommand:
    """Say hello."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name")

    def run(self, args: argparse.Namespace) -> int:
        print(f"hello, {args.name}")
        return 3


class Toy(Struct):
    """A toy."""

    size: int


def toy_words() -> list[GlossaryEntry]:
    return [GlossaryEntry("wooden", "kind of toy", "Made of wood.")]


TOY: Final = Plugin(
    name="toy",
    extra=Extra(("no_such_module",), "overlapscope toy"),
    commands=(Command("toy", "say hello", f"{__name__}:ToyCommand"),),
    words=f"{__name__}:toy_words",
    schemas={"toy": f"{__name__}:Toy"},
    observer=ObserverOption("--toys", "look for toys", f"{__name__}:NO_PLUGIN"),
    kinds={"toy": "a toy"},
)
NO_PLUGIN: Final = 7


@pytest.fixture(autouse=True)
def registered(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registered]:
    """Yield a function that registers plugins of other packages: names, and where they are."""
    with registering(tmp_path_factory.mktemp("site"), monkeypatch) as register:
        register(toy=f"{__name__}:TOY")
        entries.cache_clear()
        yield register
    entries.cache_clear()


def test_the_written_list_of_commands_holds_only_without_other_packages(registered: Registered) -> None:
    assert others_registered()
    registered()
    assert not others_registered()


def test_another_package_adds_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "you"]) == 3
    assert capsys.readouterr().out == "hello, you\n"
    assert main(["--help-all"]) == 0
    assert "say hello" in capsys.readouterr().out
    assert main(["toys"]) == 2
    assert "did you mean 'toy'?" in capsys.readouterr().err


def test_another_package_observes_recorded_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help-all"]) == 0
    assert "look for toys" in capsys.readouterr().out
    assert Options(observers=("toy",)).plain_steps == 0
    with pytest.raises(UsageError, match=r"no plugin 'toys' observes programs \(did you mean 'toy'\?\)"):
        Options(observers=("toys",))


def test_another_package_explains_its_words_and_publishes_its_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "wooden"]) == 0
    assert "Made of wood." in capsys.readouterr().out
    assert main(["schema", "toy"]) == 0
    assert "A toy." in capsys.readouterr().out


def test_a_plugins_extra_is_known() -> None:
    assert extras.missing("toy") == ["no_such_module"]
    assert "[toy]" in extras.how_to_install("toy")


def test_a_plugins_file_is_named_where_it_cannot_be_judged(tmp_path: Path) -> None:
    path = tmp_path / "toy.json"
    path.write_text('{"kind": "toy"}')
    assert kind_of(path) == "toy"
    with pytest.raises(UnreadableTrace, match="is a toy, which cannot be compared"):
        read_report([path])
    path.write_text('{"kind": "toys"}')
    assert kind_of(path) is None


@pytest.mark.parametrize(
    ("value", "says"), [("no.such:module", "ModuleNotFoundError"), (f"{__name__}:NO_PLUGIN", "not an overlapscope")]
)
def test_a_plugin_that_cannot_be_used_is_named(registered: Registered, value: str, says: str) -> None:
    registered(toy=f"{__name__}:TOY", broken=value)
    with pytest.raises(UsageError, match=says) as caught:
        list(plugins())
    assert str(caught.value).startswith(f"the plugin broken ({value})")
    assert main(["samples"]) == 0


def test_every_place_of_a_manifest_is_in_its_plugins_folder() -> None:
    for each in plugins():
        if each is not TOY:
            places = [
                *(c.place for c in each.commands),
                *(place for page in each.pages for place in (page.place, page.data) if place),
                *(s.read for s in each.sources),
                *each.rules.values(),
                *each.schemas.values(),
                *filter(None, (each.check, each.tools, each.skill)),
                *([each.observer.place] if each.observer else ()),
                *filter(None, (each.jobs, each.ranks, each.words)),
                *filter(None, (each.baseline, each.keeper, each.run and each.run.place)),
                *each.after_torch.values(),
                *each.api.values(),
            ]
            assert all(place.startswith(f"{GROUP}.{each.name}.") for place in places)
