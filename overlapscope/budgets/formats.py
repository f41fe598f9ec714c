"""Output formats of a check for CI systems and dashboards, each a function of the result. Readers' rules are linked.

GitHub's workflow commands become annotations:
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands

GitLab's Code Quality report has an entry for each verdict that did not pass:
https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format

JUnit XML follows Jenkins's `junit-10.xsd`, in which cases have no properties. Their output contains lines such as
`[[PROPERTY|value=72.4]]` instead, which several readers of JUnit files turn into properties.

OpenMetrics 1.0 has values, limits and states in base units. States are gauges of 0 and 1 instead of a stateset, because
readers of the older text format, such as a Pushgateway, refuse statesets.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, get_args
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from overlapscope.base.saved import encode
from overlapscope.budgets import words
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult, Status, Unit

# -- GitHub ------------------------------------------------------------------------------------------

MAX_ANNOTATIONS: Final = 10
"""Maximum number of annotations that GitHub shows for a step."""
_TITLE: Final = "overlapscope check"


def github(result: CheckResult) -> str:
    """Return the ten worst verdicts as annotations, and a notice with the summary."""
    annotations = list(_annotations(result))
    more = len(annotations) - MAX_ANNOTATIONS
    rest = f" {more:,} more {'is' if more == 1 else 'are'} in the step's summary." if more > 0 else ""
    lines = [*annotations[:MAX_ANNOTATIONS], _command("notice", f"{words.prose(result.summary)}{rest}", title=_TITLE)]
    return "\n".join(lines) + "\n"


def _annotations(result: CheckResult) -> Iterator[str]:
    """Yield failures, verdicts that are unknown, failures that don't count, and warnings, in this order."""
    if words.unexplained(result):
        yield _command("error", words.prose(result.summary), title=_TITLE)
    for status in ("fail", "unknown"):
        for verdict in result.verdicts:
            if words.counted(verdict) and verdict.status == status:
                yield _annotation("error", verdict)
    for verdict in result.verdicts:
        if verdict.status == "fail" and not verdict.counts:
            yield _annotation("warning", verdict)
    for warning in result.warnings:
        yield _command("warning", words.prose(warning), title=_TITLE)


def _annotation(command: str, verdict: BudgetVerdict) -> str:
    lines = [words.prose(verdict.message)]
    for reason in verdict.reasons[: words.MAX_SHOWN_REASONS]:
        within, advice = words.within(reason), words.prose(reason.advice.partition("\n")[0])
        lines.append(
            f"- {words.prose(reason.title)}{f' ({within})' if within else ''}{f': {advice}' if advice else ''}"
        )
    at = words.place(verdict)
    where = {"file": at[0], "line": str(at[1])} if at else {}
    return _command(command, "\n".join(lines), **where, title=words.title(verdict))


def _command(command: str, message: str, **properties: str) -> str:
    escaped = {key: _data(value).replace(":", "%3A").replace(",", "%2C") for key, value in properties.items()}
    written = ",".join(f"{key}={value}" for key, value in escaped.items())
    return f"::{command} {written}::{_data(message)}"


def _data(text: str) -> str:
    """Escape a message as GitHub's toolkit does."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


# -- GitLab ------------------------------------------------------------------------------------------

_FILE_OF_OTHERS: Final = "overlapscope.toml"
"""File of entries that belong to no other file."""


def gitlab(result: CheckResult) -> str:
    """Return the Code Quality report as a JSON document."""
    entries, seen = [], Counter[str]()
    if words.unexplained(result):
        entries.append(_entry("outcome", words.prose(result.summary), "major", "outcome", _FILE_OF_OTHERS, 1))
    for verdict in result.verdicts:
        if verdict.status == "pass":
            continue
        subject = verdict.subject
        path = words.in_project(subject.source) if subject.source is not None else None
        at, line = words.place(verdict) or (path or _FILE_OF_OTHERS, 1)
        message = f"{words.title(verdict)}: {words.prose(verdict.message)}"
        parts = [message, *(words.prose(reason.title) for reason in verdict.reasons[: words.MAX_SHOWN_REASONS])]
        severity = "major" if words.counted(verdict) else "minor" if verdict.status == "fail" else "info"
        # Stays the same between runs: without values, lines and the path of the checkout.
        source = path or subject.source
        key = repr((verdict.budget, source, subject.rank, subject.device, subject.scope, subject.direction))
        seen[key] += 1
        entries.append(_entry(verdict.metric, " · ".join(parts), severity, f"{key}\0{seen[key]}", at, line))
    return encode(entries).decode()


def _entry(check: str, description: str, severity: str, identity: str, path: str, line: int) -> dict[str, Any]:
    return {
        "description": description,
        "check_name": f"overlapscope/{words.name(check)}",
        "fingerprint": hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:40],
        "severity": severity,
        "location": {"path": path, "lines": {"begin": line}},
    }


# -- JUnit -------------------------------------------------------------------------------------------

_COUNTED: Final = {
    "tests": "testcase",
    "failures": "testcase/failure",
    "errors": "testcase/error",
    "skipped": "testcase/skipped",
}
"""Elements that a suite counts."""


def junit(result: CheckResult) -> str:
    """Return an XML document with a case for each budget, rank and device.

    A case fails if it keeps the check from passing.
    """
    suite = Element("testsuite", name="overlapscope check")
    properties = SubElement(suite, "properties")
    for key, value in (
        ("tool", f"{result.tool.name} {result.tool.version}"),
        ("outcome", result.outcome),
        ("exit-code", str(result.exit_code)),
    ):
        SubElement(properties, "property", name=key, value=value)
    seen = Counter[tuple[str, str]]()
    for case in words.cases(result):
        group, name = f"overlapscope.{words.name(case.metric)}", words.title(case)
        seen[group, name] += 1
        # GitLab and Jenkins identify a case by these two.
        number = f" #{seen[group, name]}" if seen[group, name] > 1 else ""
        _fill(SubElement(suite, "testcase", classname=group, name=f"{name}{number}"), case)
    if words.unexplained(result):
        element = SubElement(suite, "testcase", classname="overlapscope.check", name="outcome")
        _tell(element, "error", result.outcome, words.prose(result.summary), "")
    SubElement(suite, "system-out").text = words.prose(result.summary)
    if result.warnings:
        SubElement(suite, "system-err").text = "\n".join(map(words.prose, result.warnings))
    counts = {name: str(len(suite.findall(path))) for name, path in _COUNTED.items()}
    suite.attrib |= counts
    suites = Element("testsuites", {name: count for name, count in counts.items() if name != "skipped"})
    suites.append(suite)
    indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(suites, encoding="unicode")}\n'


def _fill(element: Element, verdict: BudgetVerdict) -> None:
    message, reasons = words.prose(verdict.message), "\n".join(_reasons(verdict))
    if words.counted(verdict):
        _tell(element, "failure" if verdict.status == "fail" else "error", verdict.status, message, reasons)
    elif verdict.status != "pass":
        kind = f"{verdict.level}-fail" if verdict.status == "fail" else verdict.status
        _tell(element, "skipped", kind, message, reasons)
    properties = {
        "status": verdict.status,
        "level": verdict.level,
        "unit": verdict.unit,
        "value": verdict.value,
        "limit": verdict.limit,
        "baseline": verdict.baseline,
        "samples": verdict.samples,
    }
    lines = [f"[[PROPERTY|{key}={value}]]" for key, value in properties.items() if value is not None]
    SubElement(element, "system-out").text = "\n".join(lines)


def _tell(case: Element, tag: str, kind: str, message: str, reasons: str) -> None:
    element = SubElement(case, tag, type=kind, message=message)
    # GitLab shows the text but not the message.
    element.text = f"{message}\n{reasons}".rstrip("\n")


def _reasons(verdict: BudgetVerdict) -> Iterator[str]:
    for number, reason in enumerate(verdict.reasons[: words.MAX_SHOWN_REASONS], 1):
        yield f"{number}. {words.prose(reason.title)}"
        texts = (words.prose(reason.detail), words.within(reason), words.prose(reason.advice))
        yield from (f"   {text}" for text in texts if text)
        if reason.rule is not None:
            yield f"   overlapscope explain {words.name(reason.rule)}"
    if verdict.exception is not None:
        yield words.prose(verdict.exception)


# -- OpenMetrics -------------------------------------------------------------------------------------

Labels = dict[str, str]
_BASE_UNITS: Final[dict[Unit, tuple[str, float]]] = {unit: (unit, 1) for unit in get_args(Unit)} | {
    "ns": ("seconds", 1e9),
    "pct": ("ratio", 100),
    "gb_per_s": ("bytes_per_second", 1e-9),
}
"""Name of the base unit, and the divisor."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def openmetrics(result: CheckResult) -> str:
    """Return the check as a text exposition, with the results of every rank and device.

    The decisive one alone would have other labels in each run.
    """
    cases = list(_labeled(result))
    outcomes = [({"outcome": outcome}, int(outcome == result.outcome)) for outcome in words.OUTCOME]
    statuses = [
        (labels | {"status": status}, int(status == case.status))
        for labels, case in cases
        for status in get_args(Status)
    ]
    lines = [
        *family("overlapscope_check_outcome", "Outcome of the check: 1 for the outcome that it has.", outcomes),
        *family("overlapscope_budget_status", "Status of a budget: 1 for the status that it has.", statuses),
    ]
    for unit, (suffix, divisor) in _BASE_UNITS.items():
        of_unit = [(labels, case.value, _limit(case)) for labels, case in cases if case.unit == unit]
        values = [(labels, value / divisor) for labels, value, _ in of_unit if value is not None]
        lines += family(f"overlapscope_budget_value_{suffix}", "The measured value.", values, unit=suffix)
        limits = [(labels, limit / divisor) for labels, _, limit in of_unit if limit is not None]
        lines += family(f"overlapscope_budget_limit_{suffix}", "The limit of the value.", limits, unit=suffix)
    return "\n".join([*lines, "# EOF"]) + "\n"


def _labeled(result: CheckResult) -> Iterator[tuple[Labels, BudgetVerdict]]:
    seen = Counter[str]()
    for case in words.cases(result):
        subject = case.subject
        stated = {
            "budget": words.name(case.budget),
            "metric": words.name(case.metric),
            "level": case.level,
            "trace": words.name(subject.source) if subject.source is not None else None,
            "rank": subject.rank,
            "device": subject.device,
            "scope": words.name(subject.scope),
            "step": words.name(subject.step) if subject.step is not None else None,
            "direction": subject.direction,
        }
        labels = {key: str(value) for key, value in stated.items() if value is not None}
        key = repr(labels)
        seen[key] += 1
        # No two samples may have the same labels.
        yield labels | ({"number": str(seen[key])} if seen[key] > 1 else {}), case


def _limit(verdict: BudgetVerdict) -> float | None:
    """Return the limit; None if it is unknown, or a value beyond it passes because it may be chance.

    Comparing the two would suggest a failure.
    """
    value, limit = verdict.value, verdict.limit
    if verdict.baseline is None or verdict.status != "pass" or value is None or limit is None:
        return limit
    kept = value >= limit if verdict.more_is_better else value <= limit
    return limit if kept else None


def family(
    name: str, help_text: str, samples: Sequence[tuple[Labels, float]], *, unit: str | None = None
) -> Iterator[str]:
    """Return the lines of a gauge; none without samples. A name ends in its unit."""
    if not samples:
        return
    yield f"# TYPE {name} gauge"
    if unit is not None:
        yield f"# UNIT {name} {unit}"
    yield f"# HELP {name} {help_text}"
    for labels, value in samples:
        escaped = {key: value.translate(_ESCAPES) for key, value in labels.items()}
        written = ",".join(f'{key}="{value}"' for key, value in escaped.items())
        yield f"{name}{{{written}}} {value!r}"
