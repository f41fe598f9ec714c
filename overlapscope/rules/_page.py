"""The page of the rules, written from the registry: `python -m overlapscope.rules._page docs/reference/rules.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from overlapscope.rules import RULES
from overlapscope.rules.rule import Rule
from overlapscope.trace.lost import CAUSES, FIGURES

_HEAD = """# Rules

<!-- Written by `python -m overlapscope.rules._page docs/reference/rules.md`; change the rules, not this page. -->

A rule turns results into advice. A warning fires where at least 1% of the judged span is at stake; an info finding
says how things are and costs nothing.

What is at stake is measured: the time that a finding answers for, an upper bound on what the fix saves of it. Exposed
copies and idle time are shared out among the rules, so their bounds never count the same time twice, with one exception
that its rule names (`slow-link`). The lead-in is never counted.

What a finding costs is what its fix saves by itself. Where a [replay](../evaluation/whatif.md) explains the recording,
the recording is replayed with the fix, and findings say "saves about"; elsewhere they say "saves at most", and the cost
is the bound.
Two fixes may save the same time, and one may do away with what several findings answer for, so costs do not add up.

A rule rests on parts of the recording. Where some of one may be lost, nobody knows what it would find: `check` calls it
unknown, and a report says how many rules cannot tell. [Trust](../how-it-works/trust.md#what-may-be-lost)
says how a loss is noticed, and what *figures* and *causes* rest on.

`overlapscope explain RULE` prints any of these sections, and which causes, interventions and metrics belong to a rule.
"""


_RESTS_ON = {FIGURES: "figures", CAUSES: "causes"}


def page() -> str:
    """All rules as Markdown."""
    rules = tuple(RULES.values())
    table = ["| rule | severity | what it finds | rests on |", "|---|---|---|---|"]
    table += [
        f"| [`{rule.id}`](#{rule.id}) | {rule.severity} | {rule.summary} | {_RESTS_ON[rule.rests_on]} |"
        for rule in rules
    ]
    return "\n".join([_HEAD, *table, "", *(_section(rule) for rule in rules)])


def _section(rule: Rule) -> str:
    return f"""## {rule.id}

{rule.summary}

{rule.meaning}

**How it is computed.** {rule.computation}

**What the fix saves.** {rule.cost}

Wrong:

```python
{rule.wrong.strip()}
```

Right:

```python
{rule.right.strip()}
```
"""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
