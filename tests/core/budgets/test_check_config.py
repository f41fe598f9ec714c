"""Tests of configuration files of a check: their search, their keys, and errors about them."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlapscope.base import config_file
from overlapscope.budgets import config
from overlapscope.budgets.quantity import parse
from overlapscope.budgets.settings import Budget, Exemption
from overlapscope.catalog.measures import METRICS
from overlapscope.commands import main
from overlapscope.compare.noise import MIN_STEPS_FOR_BOOTSTRAP
from overlapscope.errors import ConfigError

EVERYTHING = """
aggregate = "p90"
ranks = "each"
skip_steps = 2
allow_missing = true
forbid = ["pageable-memory", "pin-in-loop", "pageable-memory"]

[budgets]
efficiency_pct = { min = "80%", max_decrease = "5%", level = "warn" }
step_time = { max = "12 ms", aggregate = "worst", noise_floor = "1%" }
copy_bandwidth = { min = "40 GB/s", direction = "h2d", name = "the link" }
idle_pct = { max = 10, scope = "window", ranks = "worst", skip_steps = 0, allow_missing = false }

[[budgets.exposed_copy_time]]
max = "3 ms"
rank = 0
device = "*"
trace = "rank*.json"
step = "[3-5]"

[[budgets.exposed_copy_time]]
max_increase = "10%"
range = "forward"
noise_floor = "50 us"

[[exceptions]]
rule = "pin-in-loop"
reason = "Fixed by the new loader."
until = 2030-01-31
trace = "rank0*"
         """


def settings_of(text: str, path: Path, name: str = "overlapscope.toml") -> Path:
    file = path / name
    file.write_text(text)
    return file


def test_every_key_is_read(tmp_path: Path) -> None:
    text = EVERYTHING.replace('noise_floor = "1%" }', 'max_increase = "5%", noise_floor = "1%" }')
    path = settings_of(text, tmp_path)
    settings = config.read(path)
    assert settings.forbid == ("pageable-memory", "pin-in-loop")
    assert settings.allow_missing is True
    common = {"aggregate": "p90", "ranks": "each", "skip_steps": 2, "allow_missing": True}
    efficiency, loss, slowest, step, bandwidth, idle, first, second = settings.budgets
    place = f"{path}: budgets"
    assert efficiency == Budget(
        metric="efficiency_pct",
        limit="min",
        bound=80,
        level="warn",
        origin=f"{place}.efficiency_pct",
        **common,  # type: ignore[arg-type]
    )
    assert loss == replace(efficiency, limit="max_decrease", bound=5)
    assert slowest == replace(step, limit="max", bound=12e6) and (step.limit, step.bound) == ("max_increase", 5)
    assert (step.aggregate, step.noise_floor, step.noise_floor_pct) == ("worst", None, 1)
    assert (bandwidth.name, bandwidth.limit, bandwidth.bound, bandwidth.direction) == ("the link", "min", 40, "h2d")
    assert (idle.bound, idle.scope, idle.ranks, idle.skip_steps, idle.allow_missing) == (
        10,
        "window",
        "worst",
        0,
        False,
    )
    assert (first.trace, first.rank, first.device) == ("rank*.json", "0", "*")
    assert (first.bound, first.step, first.origin) == (3e6, "[3-5]", f"{place}.exposed_copy_time[0]")
    assert (second.range, second.limit, second.bound, second.noise_floor) == ("forward", "max_increase", 10, 50_000)
    assert settings.exceptions == (
        Exemption(
            rule="pin-in-loop",
            reason="Fixed by the new loader.",
            until=datetime.date(2030, 1, 31),
            trace="rank0*",
            origin=f"{path}: exceptions[0]",
        ),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("forbidd = []", "forbidd: there is no such key (did you mean 'forbid'?); keys: aggregate, allow_missing, "
         "baseline, budgets, communication, contract, exceptions, forbid, ranks, server_steps, skip_steps."),
        ("[tool.overlapscope]\nforbid = ['pageable-memory']", "tool: belongs in pyproject.toml; leave out "
         "tool.overlapscope here, and write [budgets]."),
        ("[budgets.step_time]\nmin = '2 ms'\nmax = '1 ms'", "budgets.step_time.min: is above max, so no value can "
         "satisfy both."),
        ("[budgets.idle_pct]\nmax = 100.5", "budgets.idle_pct.max: 100.5% is above 100%, which is impossible."),
        ("[budgets.copy_bandwidth]\nmax_decrease = '101%'", "budgets.copy_bandwidth.max_decrease: 101% is above "
         "100%, which is impossible."),
        ("aggregate = 'p0'", "aggregate: is 'p0', but must be median, mean, worst or a percentile such as p90."),
        ("forbid = 'x'", "forbid: is 'x', but must be a list of strings."),
        ("forbid = [1]", "forbid: is [1], but must be a list of strings."),
        ("budgets = 3", 'budgets: is 3, but must be a table such as { max = "…" }.'),
        ("[budgets]\nidle_pct = 3", 'budgets.idle_pct: is 3, but must be a table such as { max = "…" }.'),
        ("[budgets]\nidle_pct = [3]",
         'budgets.idle_pct[0]: is 3, but must be a table such as { max = "…" }.'),
        ("[budgets]\nidle = {}", "budgets.idle: there is no metric 'idle' (did you mean 'idle_pct'?); metrics: "
         f"{', '.join(METRICS)}."),
        ("[budgets]\nidle_pct = {}", "budgets.idle_pct: has no limit; add min, max, max_increase."),
        ("[budgets.idle_pct]\nmx = 3", "budgets.idle_pct.mx: there is no such key (did you mean 'max'?); keys: "
         "aggregate, allow_missing, device, direction, level, max, max_decrease, max_increase, min, name, noise_floor, "
         "phase, range, rank, ranks, scope, skip_steps, step, trace."),
        ("[budgets.idle_pct]\nmax = true", 'budgets.idle_pct.max: is true, but must be a number, or a string with a '
         'unit such as "3 ms".'),
        ("[budgets.idle_pct]\nmax = '3 ms'", "budgets.idle_pct.max: '3 ms' has the unit 'ms', and a percentage is "
         'needed; write it like "80%".'),
        ("[budgets.step_time]\nmax = 3", 'budgets.step_time.max: 3 has no unit, and a time is needed; write it like '
         '"3 ms".'),
        ("[budgets.step_time]\nmax_decrease = 3", "budgets.step_time.max_decrease: for step_time, less is better; "
         "write max_increase."),
        ("[budgets.efficiency_pct]\nmax_increase = 3", "budgets.efficiency_pct.max_increase: for "
         "efficiency_pct, more is better; write max_decrease."),
        ("[budgets.step_time]\nmax = '1 s'\nnoise_floor = '1 ms'", "budgets.step_time.noise_floor: needs a budget "
         "that compares with a baseline, with "
         "max_increase."),
        ("[budgets.step_time]\nmax = '1 s'\naggregate = 'avg'", "budgets.step_time.aggregate: is 'avg', but must be "
         "median, mean, worst or a percentile such as p90."),
        ("[budgets.step_time]\nmax = '1 s'\nranks = 'every'", "budgets.step_time.ranks: is 'every', but must be worst "
         "or each."),
        ("[budgets.step_time]\nmax = '1 s'\nlevel = 'warning'", "budgets.step_time.level: is 'warning', but must be "
         "error or warn (did you mean 'warn'?)."),
        ("[budgets.step_time]\nmax = '1 s'\nscope = 'step'", "budgets.step_time.scope: is 'step', but must be steps or "
         "window (did you mean 'steps'?)."),
        ("[budgets.step_time]\nmax = '1 s'\nskip_steps = -1", "budgets.step_time.skip_steps: is -1, but must be a "
         "whole number, 0 or more."),
        ("[budgets.step_time]\nmax = '1 s'\nskip_steps = '1'", "budgets.step_time.skip_steps: is '1', but must be "
         "a whole number, 0 or more."),
        ("[budgets.step_time]\nmax = '1 s'\nallow_missing = 1", "budgets.step_time.allow_missing: is 1, "
         "but must be true or false."),
        ("[budgets.step_time]\nmax = '1 s'\nname = ''", "budgets.step_time.name: is '', but must be a string that "
         "is not empty."),
        ("[budgets.step_time]\nmax = '1 s'\ndirection = 'h2d'", "budgets.step_time.direction: step_time is not only "
         "about copies."),
        ("[budgets.copy_time]\nmax = '1 s'\ndirection = 'up'", "budgets.copy_time.direction: is 'up', but must be h2d "
         "or d2h."),
        ("[budgets.copy_bandwidth]\nmin = '1 GB/s'\nrange = 'x'", "budgets.copy_bandwidth.range: copy_bandwidth "
         "is known only for steps and for the window."),
        ("[budgets.step_time]\nmax_increase = 5\nscope = 'window'", "budgets.step_time.scope: the window is "
         "measured only once, but judging a change "
         "needs many steps; use steps."),
        ("[budgets.step_time]\nmax = '1 s'\nscope = 'window'\nrange = 'x'", "budgets.step_time.scope: the window "
         "cannot be combined with a range or with "
         "steps; leave out one of them."),
        ("[[budgets.step_time]]\nmax = '1 s'\n[[budgets.step_time]]", "budgets.step_time[1]: has no limit; add min, "
         "max, max_increase."),
        ("exceptions = 3", "exceptions: is 3, but must be a list of tables: write [[exceptions]] above each."),
        ("exceptions = [3]", "exceptions: is [3], but must be a list of tables: write [[exceptions]] above each."),
        ("[[exceptions]]\nreason = 'x'\nuntil = 2030-01-01", "exceptions[0]: needs either a budget or a rule, "
         "from which it is an exception."),
        ("[[exceptions]]\nrule = 'pageable'\nreason = 'x'\nuntil = 2030-01-01", "exceptions[0].rule: there is no rule "
         "'pageable' (did you mean 'pageable-memory'?); rules: "),
        ("[[exceptions]]\nbudget = 'x'\nuntil = 2030-01-01", "exceptions[0].reason: is missing; say in a sentence why "
         "it is accepted."),
        ("[[exceptions]]\nbudget = 'x'\nreason = 'x'", "exceptions[0].until: is missing; name the last day, such as "
         "until = 2030-01-31."),
        ("[[exceptions]]\nbudget = 'x'\nreason = 'x'\nuntil = '2030-01-01'", "exceptions[0].until: is "
         "'2030-01-01', but must be a date without quotes, such as 2030-01-31."),
        ("[[exceptions]]\nbudget = 'x'\nreason = 'x'\nuntil = 2030-01-01T00:00:00", "exceptions[0].until: is "
         "2030-01-01 00:00:00, but must be a date without quotes, such as 2030-01-31."),
        ("forbid = ['pageable']", "forbid: there is no rule 'pageable' (did you mean 'pageable-memory'?); rules: "),
        ("forbid = ['overlap-achieved']", "forbid: 'overlap-achieved' is good news, so it cannot be forbidden."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_reported_with_file_and_key(text: str, message: str, tmp_path: Path) -> None:
    path = settings_of(text, tmp_path)
    with pytest.raises(ConfigError) as raised:
        config.read(path)
    text = str(raised.value)
    assert text.startswith(f"{path}: {message}")
    assert text == f"{path}: {message}" or message.endswith("rules: ")


def test_what_is_not_toml_is_reported(tmp_path: Path) -> None:
    path = settings_of("a = ", tmp_path)
    with pytest.raises(ConfigError, match="is not valid TOML: Invalid value"):
        config.read(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not TOML, because it is not UTF-8 text"):
        config.read(path)
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read"):
        config.read(tmp_path / "nowhere.toml")


def test_the_nearest_configuration_is_found(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    outer = settings_of("", tmp_path)
    assert config_file.find(inner) is None
    (tmp_path / ".git").touch()
    assert config_file.find(inner) == outer
    project = settings_of("[project]\nname = 'x'\n", inner.parent, "pyproject.toml")
    assert config_file.find(inner) == outer
    project.write_text("[tool.overlapscope]\nforbid = ['host-sync']\n")
    assert config_file.find(inner) == project
    assert config.read(project).forbid == ("host-sync",)
    project.write_text("[tool.overlapscope]\nbaseline = 'x/b.json'\n")
    assert config.read(project).baseline == inner.parent / "x" / "b.json"
    beside = settings_of("", inner.parent)
    assert config_file.find(inner) == beside


def test_a_project_without_a_section_is_reported_where_it_was_named(tmp_path: Path) -> None:
    path = settings_of("[tool.ruff]\n", tmp_path, "pyproject.toml")
    with pytest.raises(ConfigError, match=r"has no \[tool.overlapscope\]"):
        config.read(path)


def test_keys_of_a_project_are_named_in_full(tmp_path: Path) -> None:
    path = settings_of("[tool.overlapscope.budgets.idle_pct]\nmax = '3 ms'\n", tmp_path, "pyproject.toml")
    with pytest.raises(ConfigError, match=r"pyproject\.toml: tool\.overlapscope\.budgets\.idle_pct\.max: "):
        config.read(path)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("efficiency_pct >= 80", Budget(metric="efficiency_pct", limit="min", bound=80)),
        ("efficiency_pct>=80%", Budget(metric="efficiency_pct", limit="min", bound=80)),
        ("p90 step_time <= 12 ms", Budget(metric="step_time", bound=12e6, aggregate="p90")),
        ("window idle_pct <= 10%", Budget(metric="idle_pct", bound=10, scope="window")),
        ("step_time increase <= 5%", Budget(metric="step_time", limit="max_increase", bound=5)),
        (
            "mean efficiency_pct decrease <= 5",
            Budget(metric="efficiency_pct", limit="max_decrease", bound=5, aggregate="mean"),
        ),
        ("h2d copy_time <= 1 ms", Budget(metric="copy_time", bound=1e6, direction="h2d")),
        (
            "worst d2h copy_bandwidth >= 40 GB/s",
            Budget(metric="copy_bandwidth", limit="min", bound=40, aggregate="worst", direction="d2h"),
        ),
    ],
)
def test_expressions(text: str, budget: Budget) -> None:
    budgets = config.expression(text)
    assert budgets == Budget(
        **{name: getattr(budget, name) for name in budget.__struct_fields__} | {"origin": budgets.origin}
    )
    assert budgets.origin == f"--budget {text!r}"
    # A budget's name is what may be written for it.
    assert config.expression(budgets.title).title == budgets.title


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step_time", "is not a budget; write it like 'efficiency_pct >= 80%', 'p90 step_time <= 12 ms' or "
         "'step_time increase <= 5%'."),
        ("<= 3 ms", "is not a budget; write it like 'efficiency_pct >= 80%', 'p90 step_time <= 12 ms' or "
         "'step_time increase <= 5%'."),
        ("stp_time <= 3 ms", "there is no metric 'stp_time' (did you mean 'step_time'?); metrics: "
         f"{', '.join(METRICS)}."),
        ("step_time < 3 ms", "'<' is not supported; write <= or >=, which include the limit."),
        ("step_time == 3 ms", "'==' is not supported; write <= or >=, which include the limit."),
        ("step_time increase >= 3%", "a change has an upper limit; write <=."),
        ("a p90 step_time <= 3 ms", "'a' is unexpected; write [AGGREGATE] [PHASE] [h2d|d2h] METRIC <= LIMIT."),
        ("step_time <= 3", "max: '3' has no unit, and a time is needed; write it like \"3 ms\"."),
        ("step_time decrease <= 3%", "for step_time, less is better; write increase."),
        ("efficiency_pct increase <= 3%", "for efficiency_pct, more is better; write decrease."),
        ("efficiency_pct >= 101%", "min: 101% is above 100%, which is impossible."),
        ("p0 step_time <= 3 ms", "aggregate: is 'p0', but must be median, mean, worst or a percentile such as p90."),
        ("p101 step_time <= 3 ms", "aggregate: is 'p101', but must be median, mean, worst or a percentile "
         "such as p90."),
        ("h2d step_time <= 3 ms", "direction: step_time is not only about copies."),
        ("window step_time increase <= 3%", "scope: the window is measured only once, but judging a change needs "
         "many steps; use steps."),
    ],
)  # fmt: skip
def test_wrong_expressions_are_reported(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config.expression(text)
    assert str(raised.value) == f"--budget {text!r}: {message}"


def test_the_documentation_speaks_of_every_metric_and_key() -> None:
    text = Path("docs/reference/check.md").read_text()
    table = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| `")}
    named = {name.strip("` ") for cell in table for name in cell.split(",")}
    keys = (
        "aggregate allow_missing device direction level max max_decrease max_increase min name noise_floor range rank"
    )
    tops = "ranks scope skip_steps step trace budgets forbid exceptions"
    assert named >= {*METRICS, *keys.split(), *tops.split()}
    for metric in METRICS.values():
        [row] = [line for line in text.splitlines() if line.startswith(f"| `{metric.metric}` |")]
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[1] == ("more" if metric.more_is_better else "less")
        assert cells[2] == {"ns": "time", "pct": "%", "gb_per_s": "1e9 B/s", "launches": "launches"}[metric.unit]
        assert cells[3] == ("yes" if metric.needs == "copies" else "")


def test_the_documentation_states_how_many_steps_a_comparison_needs() -> None:
    text = Path("docs/reference/check.md").read_text()
    assert f"it is a change, and fewer than {MIN_STEPS_FOR_BOOTSTRAP} steps can be compared on either side" in text


def test_the_example_of_the_documentation_is_understood(tmp_path: Path) -> None:
    text = Path("docs/reference/check.md").read_text()
    example = text.partition("```toml\n")[2].partition("```")[0]
    settings = config.read(settings_of(example, tmp_path, "pyproject.toml"))
    assert (len(settings.budgets), len(settings.exceptions)) == (7, 1)
    for line in text.splitlines():
        if line.startswith("    --budget '"):
            config.expression(line.strip()[10:-1])


@pytest.mark.parametrize("name", ["overlapscope.toml", "pyproject.toml"])
@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_a_configuration_that_is_not_a_file_is_an_error(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, inner = tmp_path / name, tmp_path / "inner"
    inner.mkdir()
    (tmp_path / ".git").mkdir()
    if kind == "link":
        path.symlink_to(tmp_path / "none")
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    trace = str(Path("overlapscope/samples/training_naive.json.gz").resolve())
    monkeypatch.chdir(inner)
    assert main(["check", trace]) == 2
    assert f"{path}: is not a file, or a link to nothing" in capsys.readouterr().err


def test_a_pyproject_that_does_not_name_us_is_not_decoded(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.other\n")
    assert config_file.find(tmp_path) is None
    (tmp_path / "pyproject.toml").write_text("[tool.overlapscope\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        config_file.find(tmp_path)


def test_a_section_of_pyproject_that_is_not_a_table_is_an_error(tmp_path: Path) -> None:
    (path := tmp_path / "pyproject.toml").write_text("[[tool.overlapscope]]\nforbid = []\n")
    for refuse in (lambda: config_file.find(tmp_path), lambda: config.read(path)):
        with pytest.raises(ConfigError, match=r"tool\.overlapscope must be a table"):
            refuse()


@pytest.mark.parametrize("text", ["0.8", "1.0", 0.8])
def test_a_bare_fraction_is_refused_as_a_percentage(text: str | float) -> None:
    with pytest.raises(ConfigError, match=r"may mean (0\.8% or 80%|1% or 100%); write it like"):
        parse(text, "pct")
    assert parse("0.8%", "pct") == 0.8
    assert parse(1, "pct") == 1
