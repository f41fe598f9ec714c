"""Tests of a check's formats, which must follow their schemas or their readers' rules even with hostile names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from prometheus_client import parser as prometheus
from prometheus_client.openmetrics import parser as open_metrics

from overlapscope.analysis import analyze_trace
from overlapscope.base.words import clean
from overlapscope.budgets import words
from overlapscope.budgets.check import check
from overlapscope.budgets.formats import MAX_ANNOTATIONS, github, gitlab, junit, openmetrics
from overlapscope.budgets.settings import Budget, Settings
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult, FailureReason, Subject
from overlapscope.commands.check import drawn
from overlapscope.report.model import build
from overlapscope.trace.model import Kind
from tests.support.check_results import every_kind, forbidden, part, passed, result, unknown, verdict
from tests.support.helpers import MS, US, Host, Op, make_trace
from tests.support.schemas import validate

if TYPE_CHECKING:
    from xmlschema import XMLSchema

SCHEMAS = Path(__file__).parents[2] / "schemas"

HOSTILE = {
    "html": "<img src=x onerror=alert(1)>",
    "end of script": "</script></style></details></summary>-->",
    "end of CDATA": "]]>",
    "workflow command": "::error::owned",
    "workflow command in a line": "x\n::stop-commands::token\r\n##[add-path]/tmp",
    "encoded line break": "%0A::error::owned%0D",
    "property": "a,file=/etc/passwd::b:c,d",
    "terminal": "\x1b[31mRED\x1b]0;title\x07",
    "lone surrogates": "\ud800x\udfff",
    "NUL": "a\0b",
    "not of XML": "\x01\x0b\ufffe\uffff",
    "right to left": "\u202etxt.exe\u2066",
    "mention": "@everyone a@b.example #1 owner/repo#2 GH-3",
    "link": "http://evil.example www.evil.example [x](javascript:alert(1)) ![](http://x.y/z)",
    "table": "a|b\n|---|\n| c |",
    "code": "`` ` ```",
    "label": 'a"} 1\n# EOF\nb{c="',
    "markdown": "# h\n- [ ] *b* _i_ ~~s~~ $x$ <!-- c --> &amp; \\",
    "list": "- [ ] x",
    "numbered list": "1. x",
    "indented code": "      x",
    "rule": "---",
    "long": "x" * 100_000,
    "long and hostile": "<|`@\0" * 20_000,
    "empty": "",
    "blank": " \t\n ",
}
names = st.one_of(st.sampled_from([text for text in HOSTILE.values() if len(text) < 1000]), st.text(max_size=30))


def with_name(name: str, **changes: Any) -> CheckResult:
    """Return a check in which every text is the same foreign one."""
    subject = Subject(source=name, rank=0, device=0, scope=name, step=name)
    texts = {"title": name, "detail": name, "advice": name, "op": name, "call": name, "where": name, "rule": name}
    reason = FailureReason(time_ns=1, cause=name, **texts)
    line = FailureReason(title=name, detail=name, time_ns=1, where=f"{name}.py:12 in {name}")
    parts = (part(0, "fail", 1.0, source=name), part(1, "unknown", None, source=name))
    given: dict[str, Any] = {"subject": subject, "budget": name, "metric": name, "message": name, "parts": parts}
    return result(
        verdict(reasons=(reason, line), exception=name, **given),
        unknown(**given),
        unknown(counts=False, **given),
        passed(note=name, **given),
        passed(status="skipped", **given),
        verdict(status="accepted", exception=name, **given),
        warnings=(name, name),
        summary=name,
        **changes,
    )


# Each of these reads a format strictly, and fails where it is broken.


@cache
def junit_schema() -> XMLSchema:
    # It takes 0.3 s, which workers without these tests can do without.
    import xmlschema

    return xmlschema.XMLSchema(SCHEMAS / "jenkins-junit-10.xsd")


def read_junit(text: str) -> ElementTree.Element:
    junit_schema().validate(text)
    root = ElementTree.fromstring(text)
    cases = root.findall("testsuite/testcase")
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases)
    for tag in ("failure", "error"):
        assert root.get(f"{tag}s") == str(len(root.findall(f"testsuite/testcase/{tag}")))
    return root


@cache
def gitlab_schema() -> Any:
    return json.loads((SCHEMAS / "gitlab-code-quality.json").read_text())


def read_gitlab(text: str) -> list[dict[str, Any]]:
    issues: list[dict[str, Any]] = json.loads(text)
    validate(issues, gitlab_schema())
    assert len({issue["fingerprint"] for issue in issues}) == len(issues)
    return issues


COMMAND = re.compile(r"::(?P<command>error|warning|notice) (?P<properties>[^:]*)::(?P<data>.*)")


def read_github(text: str) -> list[dict[str, str]]:
    """Return the commands as the runner reads them: one per line, the properties up to the next `::`, unescaped
    thereafter."""
    assert text.endswith("\n")
    read = []
    for line in text[:-1].split("\n"):
        match = COMMAND.fullmatch(line)
        assert match is not None, line
        assert not re.search(r"%(?!25|0D|0A)", match["data"])
        properties = dict(part.split("=", 1) for part in match["properties"].split(","))
        assert properties.keys() <= {"file", "line", "title"}
        read.append({"command": match["command"], "data": unescaped(match["data"])})
        read[-1] |= {key: unescaped(value) for key, value in properties.items()}
    assert len(read) <= MAX_ANNOTATIONS + 1
    assert [case["command"] == "notice" for case in read] == [False] * (len(read) - 1) + [True]
    return read


def unescaped(text: str) -> str:
    for character, code in ((":", "%3A"), (",", "%2C"), ("\n", "%0A"), ("\r", "%0D"), ("%", "%25")):
        text = text.replace(code, character)
    return text


def read_openmetrics(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the samples of each family; a reader of Prometheus's older text format must find the same."""
    assert text.endswith("# EOF\n")
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in open_metrics.text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
        assert family.type == "gauge" and family.documentation and family.name.endswith(family.unit)
        samples[family.name] = [(sample.labels, sample.value) for sample in family.samples]
        assert len({repr(sorted(labels.items())) for labels, _ in samples[family.name]}) == len(family.samples)
    assert samples == {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in prometheus.text_string_to_metric_families(text)
    }
    return samples


def read_markdown(text: str) -> list[Token]:
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    allowed = re.compile(r"\s*(</?details>|</?summary>|<br>|[^<>])*\s*")
    for token in walk(tokens):
        assert token.type not in ("link_open", "image", "code_inline", "code_block", "fence", "hr", "s_open")
        if token.type in ("html_block", "html_inline"):
            assert allowed.fullmatch(token.content), token.content
    opened = sum(token.content.count("<details>") for token in walk(tokens) if token.type.startswith("html_"))
    assert opened == sum(token.content.count("</details>") for token in walk(tokens) if token.type.startswith("html_"))
    return tokens


def walk(tokens: list[Token]) -> list[Token]:
    return [item for token in tokens for item in (token, *walk(token.children or []))]


def text_of(tokens: list[Token]) -> str:
    return " ".join(
        token.content for token in walk(tokens) if token.type in ("text", "text_special", "html_block", "entity")
    )


class ParsedPage(HTMLParser):
    """A page's tags and text, outside of scripts and styles."""

    VOID = ("meta", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {key for key, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.text += data


def read_html(text: str) -> ParsedPage:
    page = ParsedPage(text)
    assert {"img", "a", "iframe", "link"}.isdisjoint(page.tags)
    assert not {key for key in page.attributes if key.startswith("on")}
    assert "default-src 'none'" in text
    return page


READERS: dict[str, Callable[[str], object]] = {
    "github": read_github,
    "gitlab": read_gitlab,
    "html": read_html,
    "junit": read_junit,
    "markdown": read_markdown,
    "openmetrics": read_openmetrics,
}


def as_markdown(checked: CheckResult) -> str:
    return drawn(checked, "markdown")


def as_summary(checked: CheckResult) -> str:
    return drawn(checked, "summary")


def as_html(checked: CheckResult) -> str:
    return drawn(checked, "html")


def rendered(form: str, checked: CheckResult) -> str:
    """Return the format as text that can be written to a file and holds nothing that a terminal acts upon."""
    text = drawn(checked, form)
    text.encode()
    assert without_assets(text).replace("\n", "").isprintable()
    return text


def without_assets(text: str) -> str:
    return re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.DOTALL)


by_format = pytest.mark.parametrize("form", READERS)


# -- every format -------------------------------------------------------------------------------------


@by_format
@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names_stay_names(form: str, name: str) -> None:
    READERS[form](rendered(form, with_name(name)))


@by_format
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(names)
def test_any_name_is_harmless(form: str, name: str) -> None:
    READERS[form](rendered(form, with_name(name)))


@by_format
@pytest.mark.parametrize(
    "checked",
    [
        result(),
        result(passed()),
        every_kind(),
        result(summary="Nothing was judged.", outcome="inconclusive"),
        result(*[verdict(), passed()] * 3),
    ],
    ids=["no budgets", "passed", "every kind", "nothing judged", "twice the same"],
)
def test_every_outcome_has_a_form(form: str, checked: CheckResult) -> None:
    READERS[form](rendered(form, checked))


@by_format
def test_formats_are_the_same_every_time(form: str) -> None:
    assert drawn(every_kind(), form) == drawn(every_kind(), form)


@by_format
def test_a_trace_that_means_harm_comes_through(form: str) -> None:
    for hostile in ("</script><img src=x onerror=alert(1)>", "::error::|`@you`\x1b[31m\n##[add-path]x]]>\0"):
        ops = [
            Op(Kind.COMPUTE, n * MS, n * MS + 100 * US, launch=(n * MS - 50, n * MS - 10), name=f"{hostile} {n}")
            for n in range(1, 9)
        ]
        calls = [Host(f"cudaStreamSynchronize{hostile}", n * MS + US, n * MS + 950 * US) for n in range(1, 9)]
        steps = [Host(f"ProfilerStep#{n}", n * MS - 100, (n + 1) * MS - 101) for n in range(1, 9)]
        ranges = [Host(hostile, n * MS - 90, (n + 1) * MS - 110) for n in range(1, 9)]
        trace = make_trace(ops, calls=calls, annotations=steps + ranges, source=f"/tmp/{hostile}.json")
        budgets = (Budget(metric="idle_pct", bound=1, range="*"), Budget(metric="idle_pct", bound=1))
        checked = check(build([analyze_trace(trace)]), Settings(budgets=budgets))
        assert checked.outcome == "fail"
        READERS[form](rendered(form, checked))


@cache
def of_many(count: int) -> CheckResult:
    """Return a job of very many ranks, all of them bad, with names as long as they may be shown."""
    verdicts = [
        base(subject=Subject(source="<|&@" * 50 + str(rank), rank=rank, device=0), **changes)
        for rank in range(count)
        for base, changes in ((verdict, {"message": "<|&@" * 500}), (passed, {}), (unknown, {}))
    ]
    return result(*verdicts, warnings=("<|&@" * 500,) * 50)


@pytest.mark.parametrize(
    ("render", "limit_bytes"),
    [(as_markdown, 65_536), (as_summary, 1_000_000), (as_html, 1_000_000), (github, 100_000)],
    ids=["comment", "step summary", "page", "annotations"],
)
def test_what_has_a_limit_keeps_to_it_and_says_what_is_missing(
    render: Callable[[CheckResult], str], limit_bytes: int
) -> None:
    text = render(of_many(800))
    assert len(text.encode()) < limit_bytes
    assert re.search(r"[\d,]+ more are ", text)


def test_what_fits_is_shown_whole() -> None:
    assert " more " not in as_markdown(every_kind()) + as_html(every_kind())


# -- JUnit --------------------------------------------------------------------------------------------


def outcomes(text: str) -> dict[str, str]:
    cases = read_junit(text).findall("testsuite/testcase")
    return {str(case.get("name")): case[0].tag if case[0].tag != "system-out" else "passed" for case in cases}


def test_junit_has_a_case_for_each_budget_and_rank() -> None:
    assert outcomes(junit(every_kind())) == {
        "efficiency_pct >= 80% (traces/rank0.json.gz, rank 0, device 0)": "failure",
        "forbid pageable-memory (traces/rank0.json.gz, rank 0, device 0)": "failure",
        "copy_bandwidth >= 40 GB/s (traces/rank1.json.gz, rank 1, device 1, window, h2d)": "error",
        "idle_pct <= 10% (traces/rank0.json.gz, rank 0, device 0)": "skipped",
        "exposed_comm_time <= 1 ms (traces/rank1.json.gz, rank 1, device 1, window, h2d)": "skipped",
        "step_time <= 12 ms (traces/rank0.json.gz, rank 0, device 0)": "skipped",
        "hidden_copy_pct >= 90% (traces/rank0.json.gz, rank 0, device 0)": "skipped",
        "step_time <= 12 ms (traces/rank0.json.gz, rank 0, device 0) #2": "passed",
        "step_time <= 12 ms (traces/rank1.json.gz, rank 1, device 1)": "passed",
    }


@pytest.mark.parametrize(
    "checked",
    [
        result(passed()),
        result(verdict()),
        result(unknown()),
        result(unknown(counts=False)),
        result(verdict(counts=False, level="warn")),
        result(passed(status="skipped")),
        result(passed(status="skipped"), outcome="inconclusive", summary="Nothing was judged."),
        result(outcome="inconclusive", summary="Nothing was judged."),
    ],
)
def test_junit_is_red_exactly_where_the_check_does_not_pass(checked: CheckResult) -> None:
    root = read_junit(junit(checked))
    assert (int(root.get("failures", 0)) + int(root.get("errors", 0)) > 0) == (checked.exit_code != 0)


def of_ranks(**changes: Any) -> CheckResult:
    """Return a budget over four ranks, of which the third decides."""
    subject = Subject(source="rank2.json.gz", rank=2, device=0)
    parts = (part(0, "pass", 90.0), part(1, "unknown", None), part(2, "fail", 61.25), part(3, "fail", 70.0))
    return result(verdict(**{"subject": subject, "parts": parts} | changes))


def test_junit_has_a_case_for_each_rank() -> None:
    cases = outcomes(junit(of_ranks()))
    assert {name.rpartition("rank ")[2][0]: tag for name, tag in cases.items()} == {
        "0": "passed",
        "1": "error",
        "2": "failure",
        "3": "failure",
    }


def test_ranks_that_do_not_decide_are_red_only_where_the_budget_fails() -> None:
    median = {"subject": Subject(), "status": "pass", "value": 80.0, "reasons": ()}
    cases = outcomes(junit(of_ranks(**median)))
    assert sorted(cases.values()) == ["passed", "passed", "skipped", "skipped", "skipped"]
    cases = outcomes(junit(of_ranks(**median | {"status": "fail"})))
    assert sorted(cases.values()) == ["error", "failure", "failure", "failure", "passed"]


def test_junit_carries_figures_and_reasons() -> None:
    case = read_junit(junit(result(verdict()))).find("testsuite/testcase")
    assert case is not None
    written = str(case.findtext("system-out")).split("\n")
    assert {"[[PROPERTY|value=61.25]]", "[[PROPERTY|limit=80.0]]", "[[PROPERTY|unit=pct]]"} <= set(written)
    failure = str(case.findtext("failure"))
    assert failure.startswith(verdict().message)
    for excerpt in ("pageable-memory, 6.2 ms a step", "train.py:42 in step", "overlapscope explain pageable-memory"):
        assert excerpt in failure


# -- GitLab -------------------------------------------------------------------------------------------


def test_gitlab_reports_what_did_not_pass_by_how_bad_it_is() -> None:
    issues = read_gitlab(gitlab(every_kind()))
    assert [issue["severity"] for issue in issues] == ["major", "major", "major", "minor", "info", "info", "info"]
    assert issues[0]["check_name"] == "overlapscope/efficiency_pct"
    assert issues[0]["description"].startswith(f"{words.title(verdict())}: {verdict().message} · ")
    assert "pageable-memory, 6.2 ms a step" in issues[0]["description"]


@pytest.mark.parametrize(
    ("where", "path", "line"),
    [
        ("train.py:42 in step", "train.py", 42),
        ("train.py(42): step", "train.py", 42),
        ("./src/a b/train.py:7 in <lambda>", "src/a b/train.py", 7),
        ("{here}/src/train.py:7 in step", "src/train.py", 7),
        ("/usr/lib/python3/threading.py:7 in run", "traces/rank0.json.gz", 1),
        ("../outside.py:7 in step", "traces/rank0.json.gz", 1),
        ("src/../../outside.py:7 in step", "traces/rank0.json.gz", 1),
        ("train.py:0 in step", "train.py", 1),
        ("no line at all", "traces/rank0.json.gz", 1),
        ("tr\nain.py:3 in step", "traces/rank0.json.gz", 1),
        (None, "traces/rank0.json.gz", 1),
    ],
)
def test_an_entry_points_at_the_line_behind_it(
    where: str | None, path: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reason = FailureReason(title="t", detail="d", time_ns=1, where=where and where.format(here=tmp_path))
    [issue] = read_gitlab(gitlab(result(verdict(reasons=(reason,)))))
    assert issue["location"] == {"path": path, "lines": {"begin": line}}


def test_an_entry_about_a_file_elsewhere_points_at_the_budgets() -> None:
    subject = Subject(source="/scratch/rank0.json.gz", rank=0)
    [issue] = read_gitlab(gitlab(result(unknown(subject=subject))))
    assert issue["location"]["path"] == "overlapscope.toml"


def test_a_fingerprint_stays_while_its_budget_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prints(*verdicts: BudgetVerdict) -> list[str]:
        return [issue["fingerprint"] for issue in read_gitlab(gitlab(result(*verdicts)))]

    later = verdict(value=40.0, message="worse", reasons=())
    assert prints(verdict(), forbidden()) == prints(later, forbidden())
    assert prints(verdict()) != prints(verdict(subject=Subject(source="traces/rank1.json.gz", rank=1)))
    monkeypatch.chdir(tmp_path)
    inside = verdict(subject=Subject(source=f"{tmp_path}/traces/rank0.json.gz", rank=0, device=0))
    assert prints(inside) == prints(verdict())


def test_two_long_names_that_look_alike_have_fingerprints_of_their_own() -> None:
    first, second = (f"{'x' * 5000}{middle}{'x' * 5000}" for middle in "ab")
    prints = [read_gitlab(gitlab(result(verdict(budget=name))))[0]["fingerprint"] for name in (first, second, first)]
    assert prints[0] == prints[2] != prints[1]


# -- GitHub -------------------------------------------------------------------------------------------


def test_github_annotates_the_worst_first() -> None:
    commands = read_github(github(every_kind()))
    assert [command["command"] for command in commands] == ["error", "error", "error", "warning", "warning", "notice"]
    assert commands[0]["file"] == "train.py" and commands[0]["line"] == "42"
    assert commands[0]["title"] == "efficiency_pct >= 80% (traces/rank0.json.gz, rank 0, device 0)"
    assert commands[0]["data"].startswith(f"{verdict().message}\n- pageable-memory, 6.2 ms a step (train.py:42 in step")
    assert "file" not in commands[2]


def test_github_shows_ten_and_says_how_many_there_are_more() -> None:
    many = [unknown(), *(verdict(subject=Subject(source="t.json", rank=rank)) for rank in range(14))]
    commands = read_github(github(result(*many)))
    assert [command["command"] for command in commands] == ["error"] * 10 + ["notice"]
    assert all("efficiency_pct" in command["title"] for command in commands[:10])
    assert commands[-1]["data"].endswith("5 more are in the step's summary.")


def test_github_says_so_where_nothing_was_judged() -> None:
    checked = result(passed(status="skipped"), outcome="inconclusive", summary="Nothing was judged.")
    assert read_github(github(checked))[0] == {
        "command": "error",
        "title": "overlapscope check",
        "data": "Nothing was judged.",
    }


@given(st.text(st.characters(blacklist_characters="\r\n"), max_size=40))
def test_what_a_command_says_comes_back_as_it_was(name: str) -> None:
    command = read_github(github(result(verdict(budget=name, message=name, reasons=()))))[0]
    assert command["data"] == clean(name)
    assert command["title"] == f"{clean(name)} (traces/rank0.json.gz, rank 0, device 0)"


# -- markdown and HTML --------------------------------------------------------------------------------


def test_markdown_has_a_row_for_each_verdict_and_reasons_behind_a_click() -> None:
    text = as_markdown(every_kind())
    tokens = read_markdown(text)
    rows = [token for token in tokens if token.type == "tr_open"]
    assert len(rows) == 9 + 2
    assert text.index("| FAIL |") < text.index("| unknown |") < text.index("| pass |")
    shown_text = text_of(tokens)
    for excerpt in ("61.2%", "≥ 80%", "10.5 ms", "≤ 12 ms", "pageable-memory, 6.2 ms a step", "Accepted until"):
        assert excerpt in shown_text.replace("\\", ""), excerpt


@given(st.text(st.characters(blacklist_characters="\n"), min_size=1, max_size=40))
def test_markdown_shows_a_name_as_it_is(name: str) -> None:
    tokens = read_markdown(as_markdown(result(verdict(budget=f"x{name}x", reasons=()))))
    cells = ["".join(child.content for child in token.children or []) for token in tokens if token.type == "inline"]
    assert f"x{clean(name)}x" in [cell.replace("\u200b", "") for cell in cells]


REFERENCES = (
    "@you a@b.example http://x.example www.x.example owner/repo#12 #13 GH-14 JIRA-15 :tada: ::+1: 4a39f1b deadbeef0 "
    "4a39f1b0c1d2e3f40516273849abcdef01234567"
)
OF_GITLAB = '!16 %17 %"v 1" ~bug ~"a b" $18 &19 [vulnerability:20] *iteration:21 ^alert#22'
"""References, each of which GitLab turns into a link."""


def test_markdown_mentions_no_user_and_links_nowhere() -> None:
    text = as_markdown(with_name(f"{REFERENCES} {OF_GITLAB}"))
    shown = "".join(f"{token.content}\n" for token in read_markdown(text) if token.type in ("inline", "html_block"))
    assert "you" in shown and "GH-" in shown
    seen = unescape(shown.replace("&#8203;", "\u200b")).replace("\\", "")
    for reference in (
        r"@\w",
        r"\w://",
        r"www\.",
        r"(?<!ProfilerStep)#\d",
        r"[A-Z]-\d",
        r":[\w+]+:",
        r"[!~$%&][\w\"]",
        r"\[vuln",
        r"\b[0-9a-f]*(?=\d)[0-9a-f]{7,}",
    ):
        assert not re.search(reference, seen), (reference, re.search(reference, seen))


def test_scopes_of_names_in_cpp_are_no_emojis_and_stay_whole() -> None:
    assert "at::native::copy" in as_markdown(with_name("void at::native::copy(48.5%)"))


@pytest.mark.parametrize("command", ["/close", "  /merge", "/assign @you", "/label ~bug"])
def test_no_line_is_a_command_to_gitlab(command: str) -> None:
    named = with_name(command)
    reason = FailureReason(title=command, detail=f"{command}\n{command}", advice=f"{command}\n{command}", time_ns=1)
    text = as_markdown(result(*named.verdicts, verdict(reasons=(reason,)), warnings=(command,), summary=command))
    assert not re.search(r"^\s*/", text, re.MULTILINE)


def test_the_page_says_what_the_check_says() -> None:
    page = read_html(as_html(every_kind()))
    text = " ".join(page.text.split())
    for excerpt in (
        "2 of 9 budgets failed.",
        "The baseline was made on NVIDIA A100",
        "efficiency_pct >= 80%",
        "61.2%",
        "≥ 80%",
        "train.py:42 in step, aten::copy_, cudaMemcpyAsync",
        "overlapscope explain pageable-memory",
        "Pin it: x.pin_memory().",
        "Issue copies on a stream of their own.",
        "Accepted until 2027-01-31: known.",
        "2 passed",
        "does not count",
    ):
        assert excerpt in text, excerpt


@given(st.text(min_size=1, max_size=40))
def test_the_page_shows_a_name_as_it_is(name: str) -> None:
    assert f"x{clean(name)}x" in read_html(as_html(result(verdict(budget=f"x{name}x")))).text


# -- OpenMetrics --------------------------------------------------------------------------------------


def test_openmetrics_are_in_base_units() -> None:
    samples = read_openmetrics(openmetrics(result(verdict(), passed(), unknown(value=55.5))))

    def sample_of(name: str) -> tuple[dict[str, str], float]:
        [sample] = samples[name]
        return sample

    labels, value = sample_of("overlapscope_budget_value_ratio")
    assert value == pytest.approx(0.6125)
    assert labels == {
        "budget": "efficiency_pct >= 80%",
        "metric": "efficiency_pct",
        "level": "error",
        "trace": "traces/rank0.json.gz",
        "rank": "0",
        "device": "0",
        "scope": "steps",
    }
    assert sample_of("overlapscope_budget_limit_seconds")[1] == pytest.approx(0.012)
    assert sample_of("overlapscope_budget_value_seconds")[1] == pytest.approx(0.010512345)
    labels, value = sample_of("overlapscope_budget_value_bytes_per_second")
    assert value == pytest.approx(55.5e9) and labels["scope"] == "window" and labels["direction"] == "h2d"


def test_openmetrics_have_each_rank_by_itself() -> None:
    samples = read_openmetrics(openmetrics(of_ranks()))
    values = {labels["rank"]: value for labels, value in samples["overlapscope_budget_value_ratio"]}
    assert values == {"0": 0.9, "2": 0.6125, "3": 0.7}
    assert {labels["rank"] for labels, _ in samples["overlapscope_budget_limit_ratio"]} == {"0", "1", "2", "3"}
    relative = read_openmetrics(openmetrics(of_ranks(baseline=75.0)))
    assert [labels["rank"] for labels, _ in relative["overlapscope_budget_limit_ratio"]] == ["2"]


def test_a_value_that_is_unknown_is_not_a_sample() -> None:
    samples = read_openmetrics(openmetrics(result(unknown())))
    assert "overlapscope_budget_value_bytes_per_second" not in samples
    assert len(samples["overlapscope_budget_limit_bytes_per_second"]) == 1


def test_openmetrics_have_one_state_for_each_budget() -> None:
    samples = read_openmetrics(openmetrics(every_kind()))
    states = samples["overlapscope_budget_status"]
    assert len(states) == 9 * 5
    assert [labels["status"] for labels, value in states if value] == [
        verdict.status for verdict in every_kind().verdicts
    ]
    outcome = samples["overlapscope_check_outcome"]
    assert {labels["outcome"]: value for labels, value in outcome} == {
        "pass": 0,
        "fail": 1,
        "inconclusive": 0,
    }


@given(st.text(max_size=40))
def test_a_label_comes_back_as_it_was(name: str) -> None:
    samples = read_openmetrics(openmetrics(result(verdict(budget=name))))
    [(labels, _)] = samples["overlapscope_budget_value_ratio"]
    assert labels["budget"] == clean(name)


# -- Shared behavior -----------------------------------------------------------------------------------


def test_value_and_limit_are_never_shown_the_same_where_they_differ() -> None:
    value, limit = words.figures(verdict(value=79.999, limit=80.0))
    assert value != limit.removeprefix("≥ ")


def test_a_name_of_a_megabyte_is_shortened_with_both_ends_kept() -> None:
    short = words.name(f"begin{'x' * 1_000_000}end")
    assert len(short) == words.NAME_LIMIT and short.startswith("begin") and short.endswith("end")
