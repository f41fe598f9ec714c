"""The command that shows what following a finding's advice would bring."""

from __future__ import annotations

import shlex
from decimal import Decimal

from overlapscope.report.page import DeviceReport
from overlapscope.rules.finding import Finding


def proof(section: DeviceReport | None, finding: Finding) -> str:
    """`overlapscope whatif train.json.gz --pin`; empty where no replay stands behind the finding's cost.

    It replays what the cost was taken from: the same device, and the same plain step where one was told.
    """
    if section is None or section.device is None or not finding.fix or not finding.cost_ns:
        return ""
    # A name that begins with a dash is no option.
    source = f"./{finding.source}" if finding.source.startswith("-") else finding.source
    words = ["overlapscope", "whatif", source]
    for change in finding.fix:
        name, _, argument = change.partition(" ")
        words += [f"--{name}", *([argument] if argument else [])]
    if len(section.trace.devices) > 1:
        words += ["--device", str(finding.device)]
    plain = section.device.plain
    if plain is not None and plain.origin == "told":
        words += ["--plain-step", f"{Decimal(plain.step_ns).scaleb(-6).normalize():f}ms"]
    command = shlex.join(words)
    # What a name in a trace could smuggle into a page or a shell is not worth a command.
    return "" if set(command) & {*"`<>|"} or not command.isprintable() else command
