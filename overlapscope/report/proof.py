"""The command that shows the saving of a finding's advice."""

from __future__ import annotations

import shlex
from decimal import Decimal

from overlapscope.prediction.interventions import name_and_argument
from overlapscope.report.page import DeviceReport
from overlapscope.rules.finding import Finding


def proof(section: DeviceReport | None, finding: Finding) -> str:
    """Return a command such as `overlapscope whatif train.json.gz --pin`, empty without a saving.

    The command repeats the replay that gave the saving: same device, same plain step if the user passed one.
    """
    if section is None or section.device is None or finding.saving is None:
        return ""
    # A file name that begins with a dash must not be read as an option.
    source = f"./{finding.source}" if finding.source.startswith("-") else finding.source
    words = ["overlapscope", "whatif", source]
    for change in finding.saving.fix:
        name, argument = name_and_argument(change)
        words += [f"--{name}", *([argument] if argument else [])]
    if len(section.trace.devices) > 1:
        words += ["--device", str(finding.device)]
    plain = section.device.plain
    if plain is not None and plain.origin == "told":
        words += ["--plain-step", f"{Decimal(plain.step_ns).scaleb(-6).normalize():f}ms"]
    command = shlex.join(words)
    # Without a command, a name from a trace can't smuggle code into a page or a shell.
    return "" if set(command) & {*"`<>|"} or not command.isprintable() else command
