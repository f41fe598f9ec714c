"""A check as JUnit XML: one case per budget, rank and device, red exactly where the check does not pass.

The form is that of Jenkins's `junit-10.xsd`, which knows no properties of a case. They stand in the case's output as
`[[PROPERTY|value=72.4]]`, which several readers of JUnit files turn back into properties.
"""

from __future__ import annotations

from collections import Counter
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from overlapscope.budgets.quantity import show
from overlapscope.budgets.verdicts import CheckResult, Verdict
from overlapscope.views.check import shown


def render(result: CheckResult) -> str:
    """The check as an XML document."""
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
        for one in shown.cases(verdict):
            _case(suite, verdict, one, seen)
    if shown.unexplained(result):
        case = SubElement(suite, "testcase", classname="overlapscope.check", name="outcome")
        _tell(case, "error", result.outcome, shown.prose(result.summary), "")
    SubElement(suite, "system-out").text = shown.prose(result.summary)
    if result.warnings:
        SubElement(suite, "system-err").text = "\n".join(shown.prose(warning) for warning in result.warnings)
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


def _case(suite: Element, verdict: Verdict, one: shown.Case, seen: Counter[tuple[str, str]]) -> None:
    group, named = f"overlapscope.{shown.name(verdict.metric)}", shown.title(verdict, one.subject)
    seen[group, named] += 1
    # GitLab and Jenkins know a case by these two.
    if seen[group, named] > 1:
        named = f"{named} #{seen[group, named]}"
    case = SubElement(suite, "testcase", classname=group, name=named)
    message, why = shown.prose(verdict.message), _why(verdict)
    if not one.decides:
        message, why = f"{show(one.value, verdict.unit)}; over all ranks and devices: {message}", ""
    if shown.counted(verdict) and one.status in ("fail", "unknown"):
        _tell(case, "failure" if one.status == "fail" else "error", one.status, message, why)
    elif one.status != "pass":
        kind = f"{verdict.level}-{one.status}" if one.status == "fail" else one.status
        _tell(case, "skipped", kind, message, why)
    SubElement(case, "system-out").text = "\n".join(_properties(verdict, one))


def _tell(case: Element, element: str, kind: str, message: str, why: str) -> None:
    told = SubElement(case, element, type=kind, message=message)
    # GitLab shows the text and leaves out the message.
    told.text = f"{message}\n{why}".rstrip("\n")


def _why(verdict: Verdict) -> str:
    lines = []
    for number, reason in enumerate(shown.reasons(verdict), 1):
        lines.append(f"{number}. {shown.prose(reason.title)}")
        told = (shown.prose(reason.detail), shown.within(reason), shown.prose(shown.advice(reason)))
        lines += [f"   {text}" for text in told if text]
        if reason.rule is not None:
            lines.append(f"   overlapscope explain {shown.name(reason.rule)}")
    if verdict.exception is not None:
        lines.append(shown.prose(verdict.exception))
    return "\n".join(lines)


def _properties(verdict: Verdict, one: shown.Case) -> list[str]:
    known = {
        "status": one.status,
        "level": verdict.level,
        "unit": verdict.unit,
        "value": one.value,
        # Of a relative budget, each rank has a limit of its own.
        "limit": verdict.limit if one.decides or verdict.baseline is None else None,
        "baseline": verdict.baseline if one.decides else None,
        "samples": one.samples,
    }
    return [f"[[PROPERTY|{key}={value}]]" for key, value in known.items() if value is not None]
