"""JUnit XML of a check, with a case for each budget, rank and device. A case fails if it keeps the check from passing.

The XML follows Jenkins's `junit-10.xsd`, in which cases have no properties. Their output contains lines such as
`[[PROPERTY|value=72.4]]` instead, which several readers of JUnit files turn into properties.
"""

from __future__ import annotations

from collections import Counter
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from overlapscope.budgets import words
from overlapscope.budgets.quantity import show
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult, DeviceVerdict, Subject


def render(result: CheckResult) -> str:
    """Return the check as an XML document."""
    suite = Element("testsuite", name="overlapscope check")
    properties = SubElement(suite, "properties")
    for key, value in (
        ("tool", f"{result.tool.name} {result.tool.version}"),
        ("outcome", result.outcome),
        ("exit-code", str(result.exit_code)),
    ):
        SubElement(properties, "property", name=key, value=value)
    seen: Counter[tuple[str, str]] = Counter()
    for verdict in result.verdicts:
        for subject, part in words.cases(verdict):
            _case(suite, verdict, subject, part, seen)
    if words.unexplained(result):
        case = SubElement(suite, "testcase", classname="overlapscope.check", name="outcome")
        _tell(case, "error", result.outcome, words.prose(result.summary), "")
    SubElement(suite, "system-out").text = words.prose(result.summary)
    if result.warnings:
        SubElement(suite, "system-err").text = "\n".join(words.prose(warning) for warning in result.warnings)
    counts = {
        "tests": len(suite.findall("testcase")),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
    }
    suites = Element("testsuites", {key: str(count) for key, count in counts.items()})
    suite.attrib |= suites.attrib | {"skipped": str(len(suite.findall("testcase/skipped")))}
    suites.append(suite)
    indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(suites, encoding="unicode")}\n'


def _case(
    suite: Element, verdict: BudgetVerdict, subject: Subject, part: DeviceVerdict, seen: Counter[tuple[str, str]]
) -> None:
    group, named = f"overlapscope.{words.name(verdict.metric)}", words.title(verdict, subject)
    seen[group, named] += 1
    # GitLab and Jenkins identify a case by these two.
    if seen[group, named] > 1:
        named = f"{named} #{seen[group, named]}"
    case = SubElement(suite, "testcase", classname=group, name=named)
    message, reasons = words.prose(verdict.message), _reasons(verdict)
    decides = subject == verdict.subject
    if not decides:
        message, reasons = f"{show(part.value, verdict.unit)}; over all ranks and devices: {message}", ""
    if words.counted(verdict) and part.status in ("fail", "unknown"):
        _tell(case, "failure" if part.status == "fail" else "error", part.status, message, reasons)
    elif part.status != "pass":
        kind = f"{verdict.level}-{part.status}" if part.status == "fail" else part.status
        _tell(case, "skipped", kind, message, reasons)
    SubElement(case, "system-out").text = "\n".join(_properties(verdict, part, decides=decides))


def _tell(case: Element, tag: str, kind: str, message: str, reasons: str) -> None:
    element = SubElement(case, tag, type=kind, message=message)
    # GitLab shows the text but not the message.
    element.text = f"{message}\n{reasons}".rstrip("\n")


def _reasons(verdict: BudgetVerdict) -> str:
    lines = []
    for number, reason in enumerate(verdict.reasons[: words.REASONS], 1):
        lines.append(f"{number}. {words.prose(reason.title)}")
        texts = (words.prose(reason.detail), words.within(reason), words.prose(reason.advice))
        lines += [f"   {text}" for text in texts if text]
        if reason.rule is not None:
            lines.append(f"   overlapscope explain {words.name(reason.rule)}")
    if verdict.exception is not None:
        lines.append(words.prose(verdict.exception))
    return "\n".join(lines)


def _properties(verdict: BudgetVerdict, part: DeviceVerdict, *, decides: bool) -> list[str]:
    properties = {
        "status": part.status,
        "level": verdict.level,
        "unit": verdict.unit,
        "value": part.value,
        # A relative budget has a different limit for each rank.
        "limit": verdict.limit if decides or verdict.baseline is None else None,
        "baseline": verdict.baseline if decides else None,
        "samples": part.samples,
    }
    return [f"[[PROPERTY|{key}={value}]]" for key, value in properties.items() if value is not None]
