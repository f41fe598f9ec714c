"""Tests that every scenario file is sound:

Its declarations fit together, name existing causes and rules, and repeat the published figures.
"""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.plugins.laboratory import catalog
from overlapscope.plugins.laboratory.experiment import SCALES, Variant
from overlapscope.rules import RULES
from tests.plugins.laboratory.scenario_files import experiment
from tests.support.published_figures import PUBLISHED, SIZES, VARIANTS

pytest.importorskip("torch", reason="scenarios are PyTorch programs")

SCENARIOS = catalog.shipped()
NAMES = {
    *("copy_matrix", "pin_cost", "many_small_copies", "pin_strategies", "pin_threads", "dataloader", "d2h_hazard"),
    *("offload_store", "offload_pipeline", "chunked_streams", "host_work", "cuda_graph", "stream_matmul"),
    *("forward_backward", "kv_offload", "activation_offload", "fsdp_offload", "async_checkpoint"),
}


def variants(name: str) -> tuple[Variant, ...]:
    return experiment(name).variants


def test_there_is_a_file_for_every_experiment() -> None:
    assert set(SCENARIOS) >= NAMES


every_scenario = pytest.mark.parametrize("name", sorted(SCENARIOS))


@every_scenario
def test_is_named_after_its_file(name: str) -> None:
    assert experiment(name).name == name


@every_scenario
def test_has_both_scales(name: str) -> None:
    assert set(experiment(name).sizes) == set(SCALES)


@every_scenario
def test_sizes_and_parameters_are_what_prepare_takes(name: str) -> None:
    takes = inspect.signature(experiment(name).prepare)
    for sizes in experiment(name).sizes.values():
        for variant in variants(name):
            takes.bind(**sizes, **variant.parameters)


@every_scenario
def test_expects_causes_and_rules_that_exist(name: str) -> None:
    for variant in variants(name):
        truth = variant.truth
        assert truth.exposed_copy is None or truth.exposed_copy in COPY_CAUSES
        assert truth.idle is None or truth.idle in IDLE_CAUSES
        assert {*truth.findings, *truth.no_findings} <= set(RULES)
        assert not {*truth.findings} & {*truth.no_findings}


@every_scenario
def test_expected_shares_are_shares(name: str) -> None:
    for variant in variants(name):
        least, most = variant.truth.hidden_copy_pct or (0, 100)
        assert 0 <= least <= most <= 100
        assert 0 < variant.truth.least_share <= 1


@every_scenario
def test_published_figures_say_what_they_were_measured_on(name: str) -> None:
    if any(variant.published for variant in variants(name)):
        assert experiment(name).published_on


@every_scenario
def test_faster_agrees_with_the_published_times(name: str) -> None:
    wall = {variant.name: variant.published.get("wall_ms") for variant in variants(name)}
    for first, second in experiment(name).faster:
        fast, slow = wall[first], wall[second]
        assert fast is None or slow is None or fast < slow


@every_scenario
def test_says_what_it_shows(name: str) -> None:
    title = experiment(name).title
    assert title == title.strip(" .") != ""
    for sentence in (experiment(name).shows, *(variant.shows for variant in variants(name))):
        assert re.fullmatch(r"\S.*\S\.", sentence)


@every_scenario
def test_is_a_script_that_explains_itself_and_runs_its_experiment(name: str) -> None:
    tree = ast.parse(SCENARIOS[name].read_text())
    assert ast.get_docstring(tree)
    assert ast.unparse(tree.body[-1]).splitlines() == [
        "if __name__ == '__main__':",
        "    from overlapscope.plugins.laboratory.experiment import main",
        "    main(EXPERIMENT)",
    ]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures_are_those_of_the_source(name: str) -> None:
    measured_on, figures = PUBLISHED[name]
    assert experiment(name).published_on == measured_on
    assert {variant.name: variant.published for variant in variants(name) if variant.published} == figures


@pytest.mark.parametrize("name", SIZES)
def test_the_paper_scale_has_the_published_sizes(name: str) -> None:
    assert SIZES[name].items() <= experiment(name).sizes["paper"].items()


@pytest.mark.parametrize("name", VARIANTS)
def test_has_every_variant(name: str) -> None:
    assert {variant.name for variant in variants(name)} == VARIANTS[name]


@every_scenario
def test_variants_differ(name: str) -> None:
    parameters = [variant.parameters for variant in variants(name)]
    assert all(parameter not in parameters[:number] for number, parameter in enumerate(parameters))
