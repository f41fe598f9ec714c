"""The page `docs/rules.md`, written from the registry: `python -m overlapscope.rules._page docs/rules.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from overlapscope.rules import all_rules
from overlapscope.rules.rule import Rule

_HEAD = """# Rules

<!-- Written by `python -m overlapscope.rules._page docs/rules.md`; change the rules, not this page. -->

A rule turns results into advice. A warning fires where it costs at least 1 % of the judged span; an info finding says
how things are and costs nothing. The cost is always an upper bound on what the fix saves, and never counts the lead-in.
Exposed copies and idle time are shared out among the rules, so their costs never count the same time twice, with one
exception that its rule names (`slow-link`). `overlapscope explain RULE` prints any of these sections.
"""


def page() -> str:
    """All rules as Markdown."""
    rules = all_rules()
    table = ["| rule | severity | what it finds |", "|---|---|---|"]
    table += [f"| [`{rule.id}`](#{rule.id}) | {rule.severity} | {rule.summary} |" for rule in rules]
    return "\n".join([_HEAD, *table, "", *(_section(rule) for rule in rules)])


def _section(rule: Rule) -> str:
    return f"""## {rule.id}

{rule.summary}

{rule.meaning}

**How it is computed.** {rule.computation}

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
